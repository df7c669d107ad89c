"""Patterns of several ONNX nodes that an engine of narrow arithmetic rewrites to what gives other numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto

from collage.frontend.read.scopes import captures, constants_of
from collage.frontend.read.weights import small_array
from collage.frontend.rewrite.bounds import MOVES, Types

_KEEPING = MOVES | frozenset("Add Sub Sum Mul Neg Abs Relu Clip Max Min Where".split())
"""Operators whose results may be next to zero, or negative, where those of their operands are."""
_SHOWING: Mapping[str, int] = {**dict.fromkeys("Log Sqrt Reciprocal Pow Sign".split(), 0), "Div": 1}
"""Operators for which it matters whether a number next to zero is one, zero or negative, and which operand that is."""
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_WIDER = (TensorProto.FLOAT, TensorProto.DOUBLE)
_PRODUCTS = frozenset(["ConvInteger", "MatMulInteger"])


def rewritten(graph: onnx.GraphProto, types: Types) -> Mapping[int, str]:
    """What is the matter with the nodes of such patterns, by index."""
    return {**_small_softplus(graph), **_dropped_roundings(graph, types)}


def _small_softplus(graph: onnx.GraphProto) -> dict[int, str]:
    """Softplus, also spelt out, of which a logarithm, a root or a reciprocal is taken.

    Of numbers below -14 the engine makes zero, or a little less than that.
    """
    ones = {name for name, tensor in constants_of(graph).items() if _is_one(tensor)}
    powers: set[str] = set()
    sums: set[str] = set()
    small: dict[str, frozenset[int]] = {}
    found: dict[int, str] = {}
    for index, node in enumerate(graph.node):
        read = set(node.input)
        if node.op_type == "Exp":
            powers.add(node.output[0])
        elif node.op_type == "Add" and read & powers and read & ones:
            sums.add(node.output[0])
        sources = frozenset[int]().union(*(small.get(name, ()) for name in node.input))
        shown = _SHOWING.get(node.op_type)
        if shown is not None and shown < len(node.input) and (where := small.get(node.input[shown])):
            found.update(
                dict.fromkeys(where, "makes small numbers zero or negative, whose reciprocal counts")
            )
        if node.op_type == "Softplus" or (node.op_type == "Log" and read & sums):
            small[node.output[0]] = frozenset([index])
        elif sources and node.op_type in _KEEPING:
            small.update(dict.fromkeys(node.output, sources))
    return found


def _is_one(tensor: TensorProto) -> bool:
    array = small_array(tensor, 1) if tensor.data_type == TensorProto.FLOAT else None
    return array is not None and bool(np.all(array == 1))


def _dropped_roundings(graph: onnx.GraphProto, types: Types) -> dict[int, str]:
    """Casts to floats of 16 bits and back, which the engine leaves out."""
    narrowed: dict[str, int] = {}
    found: dict[int, str] = {}
    for index, node in enumerate(graph.node):
        if node.op_type != "Cast":
            continue
        target = types.elements.get(node.output[0], 0)
        if target in _HALVES:
            narrowed[node.output[0]] = index
        elif target in _WIDER and node.input[0] in narrowed:
            pair = (narrowed[node.input[0]], index)
            found.update(dict.fromkeys(pair, "rounds to 16 bits, which the engine leaves out"))
    return found


def scale_shows(graph: onnx.GraphProto, quantizer: onnx.NodeProto) -> bool:
    """Whether the scale of that DynamicQuantizeLinear has an effect if all data is zero: 1, as ONNX Runtime, or 0.

    It has none if it is multiplied with nothing but what is made of the integers, which are zeros then.
    """
    if len(quantizer.output) < 2 or not quantizer.output[1]:
        return False
    constants = {tensor.name for tensor in graph.initializer}
    constants.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    zeros = _made_of_integers(graph, quantizer)
    scales, others = {quantizer.output[1]}, {each.name for each in graph.output}
    for node in graph.node:
        found = scales.intersection(node.input)
        others.update(captures(node))
        if not found or (node.op_type == "Mul" and zeros.intersection(node.input)):
            continue
        if node.op_type == "Mul" and constants.intersection(node.input):
            scales.add(node.output[0])
        elif node.op_type != "DequantizeLinear" or node.input[0] != quantizer.output[0]:
            return True
    return not scales.isdisjoint(others)


def _made_of_integers(graph: onnx.GraphProto, quantizer: onnx.NodeProto) -> set[str]:
    """The names of products of the integers with weights, and of these as floats."""
    integers, zero_points = quantizer.output[0], (*quantizer.output[2:], "")
    made: set[str] = set()
    for node in graph.node:
        read = [*node.input, "", "", ""]
        product = node.op_type in _PRODUCTS and read[0] == integers and read[2] in zero_points
        if product or (node.op_type == "Cast" and read[0] in made):
            made.update(node.output)
    return made
