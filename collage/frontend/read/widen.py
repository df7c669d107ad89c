"""Models that compute in a wider floating-point type than their author's."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import helper, numpy_helper

from collage.frontend.read.scopes import all_graphs
from collage.frontend.read.weights import array_of, fill

TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "stash_type", "softmax_precision")
"""Attributes that name a type."""


def widen(model: onnx.ModelProto, narrow: Collection[int], wide: int) -> None:
    """Give all values, weights and constants of the types ``narrow`` the type ``wide``, in place.

    Types are numbers of TensorProto. Weights keep their values.
    """
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            _widen_tensor(tensor, narrow, wide)
        for info in (*graph.input, *graph.output, *graph.value_info):
            if info.type.tensor_type.elem_type in narrow:
                info.type.tensor_type.elem_type = wide
        for node in graph.node:
            _widen_node(node, narrow, wide)
    for function in model.functions:
        for node in function.node:
            _widen_node(node, narrow, wide)


def computes_in(model: onnx.ModelProto, types: Collection[int]) -> bool:
    """Whether the model declares a value, a weight or a constant of one of these types (numbers of TensorProto)."""
    nodes = [node for function in model.functions for node in function.node]
    for graph in all_graphs(model.graph):
        infos = (*graph.input, *graph.output, *graph.value_info)
        if any(info.type.tensor_type.elem_type in types for info in infos):
            return True
        if any(tensor.data_type in types for tensor in graph.initializer):
            return True
        nodes += graph.node
    return any(
        each.t.data_type in types or (each.name in TYPE_ATTRIBUTES and each.i in types)
        for node in nodes
        for each in node.attribute
    )


def _widen_node(node: onnx.NodeProto, narrow: Collection[int], wide: int) -> None:
    for attribute in node.attribute:
        if attribute.name in TYPE_ATTRIBUTES and attribute.i in narrow:
            attribute.i = wide
        if attribute.HasField("t"):
            _widen_tensor(attribute.t, narrow, wide)


def _widen_tensor(tensor: onnx.TensorProto, narrow: Collection[int], wide: int) -> None:
    if tensor.data_type not in narrow:
        fill(tensor)
    else:
        dtype = helper.tensor_dtype_to_np_dtype(wide)
        tensor.CopyFrom(numpy_helper.from_array(array_of(tensor).astype(dtype), tensor.name))
