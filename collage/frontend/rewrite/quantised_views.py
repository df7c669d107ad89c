"""Views of values that come quantised are taken of their integers.

ONNX Runtime writes a product of three axes as dequantize, reshape, quantize, dequantize, product, and all of that once
more behind it. A reshape of integers costs nothing, and the product beside it finds what is dequantized.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from collage.frontend.read.weights import array_of

_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"})
_LEAST_OPSET = 13
"""From here on what dequantizes has an axis, also where one scale serves all."""
_LEAST_SCALE = 1e-30
"""With steps of this size and larger, dequantizing and quantizing again gives the same integers."""


def views_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, changed in place: what dequantizes stands behind a view, and not before what quantizes again.

    Only values of 8 bits with one scale are concerned. The results are the same to the bit. Models with control flow
    stay as they are, since bodies of loops may use any value.
    """
    graph = model.graph
    ops = {node.op_type for node in graph.node}
    version = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)
    if version < _LEAST_OPSET:
        return model
    if "DequantizeLinear" in ops and not any(
        a.HasField("g") or a.graphs for n in graph.node for a in n.attribute
    ):
        while _swap_one(graph) or _drop_one(graph):
            pass
    return model


_OWN = ("block_size", "output_dtype")
"""Attributes of a DequantizeLinear that may make something else of it than float32 numbers with one scale."""


def _swap_one(graph: onnx.GraphProto) -> bool:
    """Put one view before what dequantizes its data, if there is one."""
    weights, makers, uses = _initializers(graph), _makers(graph), _uses(graph)
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
        del moved.attribute[:]
        moved.attribute.append(
            helper.make_attribute("axis", 0)
        )  # the default need not be an axis of the view
        graph.node.insert(at + 1, moved)
        del graph.node[place]
        _forget_types(graph, {result, before.output[0]})
        return True
    return False


def _drop_one(graph: onnx.GraphProto) -> bool:
    """Remove one node that quantizes what was just dequantized in the same steps, if there is one."""
    weights, makers = _initializers(graph), _makers(graph)
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


def _steps(
    node: onnx.NodeProto, op: str, weights: Mapping[str, onnx.TensorProto]
) -> tuple[float, int, str] | None:
    """The scale, the zero point and the dtype of a node of that kind; None where there are several, or no constants."""
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


def _initializers(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in graph.initializer}


def _makers(graph: onnx.GraphProto) -> dict[str, int]:
    """The index of the node that makes each value."""
    return {name: index for index, node in enumerate(graph.node) for name in node.output}


def _uses(graph: onnx.GraphProto) -> Counter[str]:
    """How often each value is used, by nodes and as an output of the model."""
    counts = Counter(name for node in graph.node for name in node.input)
    counts.update(each.name for each in graph.output)
    return counts


def _forget_types(graph: onnx.GraphProto, names: set[str]) -> None:
    kept = [each for each in graph.value_info if each.name not in names]
    del graph.value_info[:]
    graph.value_info.extend(kept)
