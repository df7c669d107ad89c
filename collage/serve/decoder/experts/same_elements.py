"""Values that are another one in other axes, and values whose elements are all the same number."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from collage.serve.decoder.onnx_graph import OnnxGraph, attribute

_RESHAPING = frozenset("Unsqueeze Squeeze Flatten Reshape Identity".split())


def base_of(graph: OnnxGraph, name: str) -> str:
    """The value that has the same elements in the same order, and perhaps other axes."""
    node = graph.producers.get(name)
    while node is not None and (
        node.op_type in _RESHAPING or _moves_ones(graph, node) or _keeps_dtype(graph, node)
    ):
        name = node.input[0]
        node = graph.producers.get(name)
    return name


def _moves_ones(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Whether a node moves axes of one element only."""
    shape = graph.shapes.get(node.input[0]) if node.op_type == "Transpose" else None
    order = attribute(node, "perm")
    if shape is None or not isinstance(order, list):
        return False
    moved = [axis for axis in order if shape[axis] > 1]
    return moved == sorted(moved)


def _keeps_dtype(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Whether a node casts to the dtype that is there."""
    return node.op_type == "Cast" and graph.dtypes.get(node.input[0]) == attribute(node, "to")


def is_zero(graph: OnnxGraph, name: str) -> bool:
    """Whether a value is all zeros, whatever its shape."""
    return filling(graph, name) == 0


def filling(graph: OnnxGraph, name: str) -> float | None:
    """The number that all elements of a value are, whatever its shape, or None where they differ or are not known."""
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
