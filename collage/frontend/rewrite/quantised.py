"""Quantised operators as dequantize, compute in floats, and quantize again, with views taken of the integers.

Files have QLinearConv and QLinearMatMul, or what these stand for. Kernels of our own are offered the second form. ONNX
Runtime writes a product of three axes as dequantize, reshape, quantize, dequantize, product, and all of that once more
behind it. A reshape of integers costs nothing, and the product beside it finds what is dequantized.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage.frontend.read.scopes import STANDARD, bodies, opset_of, set_all
from collage.frontend.read.weights import array_of
from collage.graph.dataflow import Array

_LEAST_OPSET = 13
"""From this operator set on a DequantizeLinear has an axis, and may have a scale for each channel."""
_AXES = {"QLinearConv": 0, "QLinearMatMul": 1}
"""The operators, and the axis of the weights that output channels are on."""


def spelt_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without these operators in its main graph if all but the data is constant; the model if it has none.

    Their sums of integers become sums of floats. If a result is within a rounding error of the middle between two
    steps, it may become the other one of these.
    """
    if opset_of(model) < _LEAST_OPSET or not any(_is_one(node) for node in model.graph.node):
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
    set_all(graph.node, nodes)
    return copy


def _is_one(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD and node.op_type in _AXES


def _add(graph: onnx.GraphProto, name: str, array: Array) -> str:
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    return name


def _made_of(
    node: onnx.NodeProto, arrays: Mapping[str, Array], add: Callable[[str, Array], str]
) -> list[onnx.NodeProto]:
    """The nodes in its place, none if they would not mean the same. ``add`` adds a constant and gives its name."""
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


_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"})
_LEAST_SCALE = 1e-30
"""With steps of this size and larger, dequantizing and quantizing again gives the same integers."""


def views_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, changed in place: what dequantizes stands behind a view, and not before what quantizes again.

    Only values of 8 bits with one scale are concerned. The results are the same to the bit. Models with control flow
    stay as they are, since bodies of loops may use any value.
    """
    graph = model.graph
    ops = {node.op_type for node in graph.node}
    if opset_of(model) < _LEAST_OPSET or "DequantizeLinear" not in ops:
        return model
    if not any(True for node in graph.node for _ in bodies(node)):
        while _swap_one(graph) or _drop_one(graph):
            pass
    return model


_OWN = ("block_size", "output_dtype")
"""Attributes of a DequantizeLinear that may make something else of it than float32 numbers with one scale."""


def _swap_one(graph: onnx.GraphProto) -> bool:
    """Put one view before what dequantizes its data, if there is one."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    makers, uses = _makers(graph), _uses(graph)
    for at, node in enumerate(graph.node):
        if node.domain or node.op_type not in _VIEWS or node.input[0] not in makers:
            continue
        place = makers[node.input[0]]
        before = graph.node[place]
        if _steps(before, "DequantizeLinear", weights) is None or before.input[0] in weights:
            continue
        if uses[before.output[0]] > 1 or any(each.name in _OWN and each.i for each in before.attribute):
            continue
        moved = onnx.NodeProto()
        moved.CopyFrom(before)
        result = node.output[0]
        node.input[0], node.output[0] = before.input[0], f"{result}/steps"
        moved.input[0], moved.output[0] = node.output[0], result
        # the default need not be an axis of the view
        set_all(moved.attribute, [helper.make_attribute("axis", 0)])
        graph.node.insert(at + 1, moved)
        del graph.node[place]
        stale = {result, before.output[0]}
        set_all(graph.value_info, [each for each in graph.value_info if each.name not in stale])
        return True
    return False


def _drop_one(graph: onnx.GraphProto) -> bool:
    """Remove one node that quantizes what was just dequantized in the same steps, if there is one."""
    weights, makers = {tensor.name: tensor for tensor in graph.initializer}, _makers(graph)
    outputs = {each.name for each in graph.output}
    for at, node in enumerate(graph.node):
        steps = _steps(node, "QuantizeLinear", weights)
        if steps is None or node.output[0] in outputs or node.input[0] not in makers:
            continue
        place = makers[node.input[0]]
        before = graph.node[place]
        if _steps(before, "DequantizeLinear", weights) != steps:
            continue
        for each in graph.node:
            for position, name in enumerate(each.input):
                if name == node.output[0]:
                    each.input[position] = before.input[0]
        unused = _uses(graph)[before.output[0]] == 1
        del graph.node[at]
        if unused:
            del graph.node[place]
        return True
    return False


def _steps(node: onnx.NodeProto, op: str, weights: Mapping[str, onnx.TensorProto]) -> tuple[float, int, str] | None:
    """The scale, the zero point and the dtype of a node of that kind; None if there are several, or no constants."""
    if node.domain or node.op_type != op or len(node.input) < 3:
        return None
    scale, zero = (weights.get(name) for name in node.input[1:3])
    if scale is None or zero is None or scale.data_type != onnx.TensorProto.FLOAT:
        return None
    one, none = array_of(scale), array_of(zero)
    if one.size != 1 or none.size != 1 or none.dtype not in (np.uint8, np.int8):
        return None
    found = float(one.reshape(-1)[0])
    return (found, int(none.reshape(-1)[0]), none.dtype.name) if _LEAST_SCALE <= found < np.inf else None


def _makers(graph: onnx.GraphProto) -> dict[str, int]:
    """The index of the node that makes each value."""
    return {name: index for index, node in enumerate(graph.node) for name in node.output}


def _uses(graph: onnx.GraphProto) -> Counter[str]:
    """How often each value is used, by nodes and as an output of the model."""
    counts = Counter(name for node in graph.node for name in node.input)
    counts.update(each.name for each in graph.output)
    return counts
