"""QLinearConv and QLinearMatMul as what they stand for: dequantize, compute in floats, and quantize again.

Files have either form. Kernels of our own are offered the second one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage.frontend.read.weights import array_of
from collage.graph.dataflow import Array

_LEAST_OPSET = 13
"""From here on what dequantizes may have a scale for each channel."""
_AXES = {"QLinearConv": 0, "QLinearMatMul": 1}
"""The operators, and the axis of the weights that output channels are on."""


def spelt_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without these operators in its main graph where all but the data is constant; the model if it has none.

    Their sums of integers become sums of floats. Where a result is within a rounding error of the middle between two
    steps, it may become the other one of these.
    """
    version = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)
    if version < _LEAST_OPSET or not any(_is_one(node) for node in model.graph.node):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    constants = {each.name: each for each in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if not _is_one(node) or any(name not in constants for name in node.input[1:]):
            nodes.append(node)
            continue
        arrays = {name: array_of(constants[name]) for name in node.input[1:]}
        nodes += _made_of(node, arrays, lambda name, array: _add(graph, name, array)) or [node]
    del graph.node[:]
    graph.node.extend(nodes)
    return copy


def _is_one(node: onnx.NodeProto) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in _AXES


def _add(graph: onnx.GraphProto, name: str, array: Array) -> str:
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    return name


def _made_of(
    node: onnx.NodeProto, arrays: Mapping[str, Array], add: Callable[[str, Array], str]
) -> list[onnx.NodeProto]:
    """The nodes in its place, none where they would not mean the same. ``add`` adds a constant and gives its name."""
    data, data_scale, data_zero, right, right_scale, right_zero, scale, zero, *bias = node.input
    factors, zeros = arrays[right_scale].reshape(-1), arrays[right_zero].reshape(-1)
    one = [arrays[name] for name in (data_scale, data_zero, scale, zero)]
    weights = arrays[right]
    channels = weights.shape[_AXES[node.op_type]] if weights.ndim >= 2 else 0
    if any(each.size != 1 for each in one) or {factors.size, zeros.size} - {1, channels}:
        return []
    if node.op_type == "QLinearMatMul" and weights.ndim != 2:
        return []
    name = node.output[0]
    names = [add(f"{name}/{i}", each.reshape(())) for i, each in enumerate(one)]
    shape = () if factors.size == zeros.size == 1 else (channels,)
    of_weights = [
        add(f"{name}/{what}", np.broadcast_to(each if shape else each.reshape(()), shape))
        for what, each in (("scales", factors), ("zeros", zeros))
    ]
    made = [
        helper.make_node("DequantizeLinear", [data, *names[:2]], [f"{name}/data"]),
        helper.make_node("DequantizeLinear", [right, *of_weights], [f"{name}/weights"]),
    ]
    if shape:
        made[1].attribute.append(helper.make_attribute("axis", _AXES[node.op_type]))
    operands = [f"{name}/data", f"{name}/weights"]
    if bias:
        exact = arrays[bias[0]].astype(np.float64) * float(one[0].reshape(-1)[0]) * factors.astype(np.float64)
        operands.append(add(f"{name}/bias", exact.astype(np.float32)))
    body = helper.make_node(node.op_type.removeprefix("QLinear"), operands, [f"{name}/float"], node.name)
    body.attribute.extend(node.attribute)
    return [*made, body, helper.make_node("QuantizeLinear", [f"{name}/float", *names[2:]], [name])]
