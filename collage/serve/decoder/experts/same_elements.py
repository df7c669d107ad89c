"""Values that are another one in other axes, and values that are zeros."""

from __future__ import annotations

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
    found = graph.constants.get(name)
    if found is not None:
        return not found.any()
    node = graph.producers.get(name)
    if node is None:
        return False
    if node.op_type == "ConstantOfShape":
        filling = attribute(node, "value")
        return not isinstance(filling, onnx.TensorProto) or not numpy_helper.to_array(filling).any()
    return node.op_type in ("Expand", "Cast", "Identity") and is_zero(graph, node.input[0])
