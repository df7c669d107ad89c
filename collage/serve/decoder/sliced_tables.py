"""Tables of positions that a graph cuts to the sequence's length before it looks positions up: they are read whole.

A position is always below the sequence's length, so the cut changes nothing; with it, a graph for some tokens would
have a table for only so many.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import onnx

from collage.serve.decoder.description import IDS, MASK, POSITIONS
from collage.serve.decoder.onnx_graph import GraphSizes, OnnxGraph, attribute, read_graph

_KEEP = frozenset("Cast Identity Squeeze Unsqueeze".split())


def read_decoder(
    model: onnx.ModelProto, sizes: GraphSizes, places: Collection[str] | None = None
) -> OnnxGraph:
    """The model's graph without such cuts; sizes, places and errors are those of ``read_graph``."""
    graph = read_graph(model, sizes, places)
    whole = sizes.tokens + (sizes.past if set(graph.inputs) - {IDS, POSITIONS, MASK} else 0)
    made = {name: node for node in model.graph.node for name in node.output}
    shapes = dict(graph.shapes)
    tables: dict[str, str] = {}
    for node in graph.nodes:
        if node.op_type == "Slice" and (axis := _cut_axis(graph, node, whole)) is not None:
            before = math.prod(graph.shapes[node.input[0]][:axis])
            values = _only_looked_up(graph, node.output[0], whole, before)
            if values is not None and _follows_from_sizes(graph, made, node.input[2]):
                tables[node.output[0]] = node.input[0]
                for value in values:
                    sizes_of = list(shapes[value])
                    sizes_of[_axis(shapes[value], whole, before)] = graph.shapes[node.input[0]][axis]
                    shapes[value] = tuple(sizes_of)
    if not tables:
        return graph
    kept = [node for node in graph.nodes if node.output[0] not in tables]
    return replace(graph, nodes=tuple(_reading(node, tables) for node in kept), shapes=shapes)


def _cut_axis(graph: OnnxGraph, node: onnx.NodeProto, whole: int) -> int | None:
    """The axis of which the node takes the first ``whole`` elements; None where it does another thing."""
    before, after = graph.shapes.get(node.input[0]), graph.shapes.get(node.output[0])
    bounds = [graph.scalar(name) for name in (*node.input[1:3], *node.input[4:5])]
    if before is None or after is None or bounds[:2] != [0, whole] or bounds[2:] not in ([], [1]):
        return None
    changed = [axis for axis, size in enumerate(before) if after[axis] != size]
    return changed[0] if len(changed) == 1 and after[changed[0]] == whole else None


def _axis(shape: tuple[int, ...], whole: int, before: int) -> int:
    """The axis of ``whole`` elements that has ``before`` rows in front of it, wherever axes of one element are."""
    each = (axis for axis, size in enumerate(shape) if size == whole and math.prod(shape[:axis]) == before)
    return next(each)


def _only_looked_up(graph: OnnxGraph, value: str, whole: int, before: int) -> list[str] | None:
    """The value and others that hold the same rows, where positions are looked up in them and nothing else is done."""
    found = [value]
    if value in graph.outputs or not graph.users.get(value):
        return None
    for user in graph.users[value]:
        if user.op_type in _KEEP and user.input[0] == value and user.output[0] in graph.shapes:
            more = _only_looked_up(graph, user.output[0], whole, before)
            if more is None:
                return None
            found += more
        elif not _looks_up(graph, user, value, whole, before):
            return None
    return found


def _looks_up(graph: OnnxGraph, node: onnx.NodeProto, table: str, whole: int, before: int) -> bool:
    if node.op_type not in ("Gather", "GatherND") or node.input[0] != table:
        return False
    axis, shape = attribute(node, "axis", 0), graph.shapes[table]
    assert isinstance(axis, int)
    if node.input[1] not in graph.from_positions - graph.from_tokens or shape[axis] != whole:
        return False
    return math.prod(shape[: axis % len(shape)]) == before


def _follows_from_sizes(graph: OnnxGraph, made: Mapping[str, onnx.NodeProto], name: str) -> bool:
    """Whether a constant of the graph was computed from the shape of what is no weight."""
    waiting, seen = [name], set()
    while waiting:
        node = made.get(waiting.pop())
        if node is None or node.output[0] in seen:
            continue
        seen.add(node.output[0])
        if node.op_type in ("Shape", "Size"):
            if node.input[0] not in graph.weights:
                return True
        else:
            waiting += node.input
    return False


def _reading(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """The node, reading other values for some."""
    if not any(name in names for name in node.input):
        return node
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    changed.input[:] = [names.get(name, name) for name in node.input]
    return changed
