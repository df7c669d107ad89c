"""Following values through a graph, and reading them: choices of experts, other axes of a value, one number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

import numpy as np
import onnx
from onnx import numpy_helper

from collage.serve.decoder.onnx_graph import OnnxGraph, attribute


def follow(graph: OnnxGraph, names: Iterable[str], visit: Callable[[onnx.NodeProto], Iterable[str]]) -> None:
    """Visit the nodes that read these values, or others that are followed, each once and in order.

    ``visit`` returns those of the values that a node makes that are followed, too.
    """
    waiting: list[int] = []
    reached: set[int] = set()
    while True:
        places = {graph.order[id(user)] for name in names for user in graph.users.get(name, ())}
        for place in places - reached:
            heappush(waiting, place)
        reached |= places
        if not waiting:
            return
        names = visit(graph.nodes[heappop(waiting)])


def experts_chosen_from(graph: OnnxGraph, tokens: int, name: str) -> int:
    """The number of experts of which a value [tokens, slots] has different ones for each token, 0 for another value.

    They are the places of the largest or least of as many scores, and so all of them below that number.
    """
    node = graph.producers.get(name)
    if node is None or node.op_type != "TopK" or list(node.output).index(name) != 1:
        return 0
    shape, scores = (graph.shapes.get(each, ()) for each in (name, node.input[0]))
    by_token = len(shape) == len(scores) == 2 and shape[0] == scores[0] == tokens
    return scores[1] if by_token and attribute(node, "axis", -1) in (-1, 1) else 0


_RESHAPING = frozenset("Unsqueeze Squeeze Flatten Reshape Identity".split())


def base_of(graph: OnnxGraph, name: str) -> str:
    """The value that has the same elements in the same order, and perhaps other axes."""
    node = graph.producers.get(name)
    while node is not None and (node.op_type in _RESHAPING or _moves_ones(graph, node) or _keeps_dtype(graph, node)):
        name = node.input[0]
        node = graph.producers.get(name)
    return name


def _moves_ones(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    shape = graph.shapes.get(node.input[0]) if node.op_type == "Transpose" else None
    order = attribute(node, "perm")
    if shape is None or not isinstance(order, list):
        return False
    moved = [axis for axis in order if shape[axis] > 1]
    return moved == sorted(moved)


def _keeps_dtype(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and graph.dtypes.get(node.input[0]) == attribute(node, "to")


def is_zero(graph: OnnxGraph, name: str) -> bool:
    return filling(graph, name) == 0


def filling(graph: OnnxGraph, name: str) -> float | None:
    """The number that all elements of a value are, whatever its shape, or None if they differ or are not known."""
    found = graph.constants.get(name)
    node = graph.producers.get(name)
    if found is None and node is not None and node.op_type == "ConstantOfShape":
        given = attribute(node, "value")
        found = numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.zeros(1)
    if found is not None:
        return float(found.flat[0]) if found.size and (found == found.flat[0]).all() else None
    if node is None or node.op_type not in ("Expand", "Cast", "Identity"):
        return None
    return filling(graph, node.input[0])
