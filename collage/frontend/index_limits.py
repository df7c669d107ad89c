"""Which inputs of a model are indices, and into how many rows: what is out of range is told before a run."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

_INDEXED = frozenset(["Gather", "GatherElements"])
_SAME_VALUES = frozenset("Cast Expand Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
"""Operators whose output holds the values of their first input, and no others."""


def index_limits(model: onnx.ModelProto) -> Mapping[str, int]:
    """For each input of a simplified model that is used as indices, the rows of the smallest thing it indexes.

    An index is at least the negative of that number, and less than it. What is calculated with first is not among them.
    """
    graph = model.graph
    extents = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info):
        extents[info.name] = [
            d.dim_value if d.HasField("dim_value") else -1 for d in info.type.tensor_type.shape.dim
        ]
    origin = {info.name: info.name for info in graph.input}
    limits: dict[str, int] = {}
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type in _SAME_VALUES and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type in _INDEXED and node.input[1] in origin and extents.get(node.input[0]):
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            rows, name = extents[node.input[0]][axis], origin[node.input[1]]
            if rows > 0:
                limits[name] = min(rows, limits.get(name, rows))
    return limits
