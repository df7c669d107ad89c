"""Float quotients that become whole numbers or decide something, so that the last bit of a division matters.

An engine that multiplies by the rounded reciprocal makes less than 1 of 41 / 41, whose floor is 0. Powers of negative
exponents are alike, and so are two constants that are added or multiplied one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import TensorProto

from collage.frontend.read.scopes import constants_of, integer
from collage.frontend.read.weights import array_of, is_apart, is_external, small_array
from collage.frontend.rewrite.value_types import INTEGERS, MOVES, Types
from collage.graph.decisions import are_powers_of_two

_KEEPING = MOVES | frozenset("Add Sub Mul Sum Neg Abs Relu Clip Min Max Where Identity".split())
"""Operators whose results may be whole numbers, or equal to a bound, where those of their operands are."""
_DECIDING = frozenset(
    "Floor Ceil Round Mod Equal Greater GreaterOrEqual Less LessOrEqual Sign Shrink ThresholdedRelu".split()
)
_KINDS: Mapping[str, str] = {"Add": "sum", "Sub": "sum", "Mul": "product"}
_REASONS: Mapping[str, str] = {
    "Div": "makes a quotient that is rounded, by multiplying with a reciprocal",
    "Pow": "makes a power that is rounded, by multiplying with a reciprocal",
    "Add": "makes a number that is rounded, by computing with two constants at once",
}
"""How an engine computes what is decided by, by the operator."""
_MOST_ELEMENTS = 1 << 16
_FIXED = frozenset(["Shape", "Size"])
"""Operators whose results do not depend on the numbers of their operands."""


def rounded_quotients(graph: onnx.GraphProto, types: Types) -> Mapping[int, str]:
    """What the nodes do, by index, which divide or decide where the last bit of a quotient matters.

    Divisors that are constant powers of two are no matter, nor is what is computed of constants and shapes alone.
    """
    constants = constants_of(graph)
    fixed = {"", *constants}
    divided: dict[str, frozenset[int]] = {}
    combined: dict[str, tuple[str, bool]] = {}
    found: dict[int, str] = {}
    for index, node in enumerate(graph.node):
        if node.op_type in _FIXED or fixed.issuperset(node.input):
            fixed.update(node.output)
            continue
        sources = frozenset[int]().union(*(divided.get(name, ()) for name in node.input))
        if sources and _decides(node):
            found[index] = "decides by the last bit of a number that the engine computes in another way"
            for source in sources:
                of = graph.node[source]
                found[source] = _REASONS.get(of.op_type, _REASONS["Add"])
        if node.op_type == "Div" and not types.is_integer(node.output[0]):
            exact = node.input[1] in constants and _by_powers_of_two(constants[node.input[1]])
            divided[node.output[0]] = sources if exact else sources | {index}
        elif _has_negative_exponent(node, constants) or _is_combined(node, constants, combined):
            divided[node.output[0]] = sources | {index}
        elif sources and node.op_type in _KEEPING:
            divided.update(dict.fromkeys(node.output, sources))
    return found


def _has_negative_exponent(node: onnx.NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    if node.op_type != "Pow" or node.input[1] not in constants:
        return False
    exponent = small_array(constants[node.input[1]], _MOST_ELEMENTS)
    return exponent is not None and bool(np.any(np.less(exponent, 0)))


def _is_combined(
    node: onnx.NodeProto, constants: Mapping[str, TensorProto], combined: dict[str, tuple[str, bool]]
) -> bool:
    """Whether a node adds a constant to what one was added to, or multiplies again, which an engine does at once.

    ``combined`` has what was done last to values, and whether it was exact, and is added to. With whole numbers and
    powers of two nothing is rounded of what is usually rounded later.
    """
    kind = _KINDS.get(node.op_type)
    values = [name for name in node.input if name not in constants]
    if kind is None or len(node.input) != 2 or len(values) != 1:
        return False
    (constant,) = (name for name in node.input if name in constants)
    array = small_array(constants[constant], _MOST_ELEMENTS)
    if array is None or array.dtype.kind != "f":
        return False
    exact = bool((array == np.rint(array)).all()) or (kind == "product" and are_powers_of_two(array))
    before, was_exact = combined.get(values[0], ("", True))
    again = before == kind
    combined[node.output[0]] = kind, exact and (was_exact or not again)
    return again and not (exact and was_exact)


def _by_powers_of_two(divisor: TensorProto) -> bool:
    at_hand = is_apart(divisor) or not is_external(divisor)
    return at_hand and are_powers_of_two(array_of(divisor))


def _decides(node: onnx.NodeProto) -> bool:
    """Whether a node makes whole numbers of others, or a choice."""
    if node.op_type != "Cast":
        return node.op_type in _DECIDING
    return integer(node, "to") in INTEGERS
