"""Float quotients that become whole numbers or decide something, where the last bit of a division matters.

An engine that multiplies by the rounded reciprocal of a divisor makes less than 1 of 41 / 41, whose floor is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx.numpy_helper
from onnx import TensorProto

from collage.frontend.bounds import INTEGERS, MOVES, Types
from collage.frontend.weights import array_of, is_apart, is_external
from collage.graph.reciprocals import are_powers_of_two

_KEEPING = MOVES | frozenset("Add Sub Mul Sum Neg Abs Relu Clip Min Max Where Identity".split())
"""Operators whose results may be whole numbers, or equal to a bound, where those of their operands are."""
_DECIDING = frozenset(
    "Floor Ceil Round Mod Equal Greater GreaterOrEqual Less LessOrEqual Sign Shrink ThresholdedRelu".split()
)
_FIXED = frozenset(["Shape", "Size"])
"""Operators whose results do not depend on the numbers of their operands."""


def rounded_quotients(graph: onnx.GraphProto, types: Types) -> Mapping[int, str]:
    """What the nodes do, by index, which divide or decide where the last bit of a quotient matters.

    Divisors that are constant powers of two are no matter, nor is what is computed of constants and shapes alone.
    """
    constants = {each.name: each for each in graph.initializer}
    fixed = {"", *constants}
    divided: dict[str, frozenset[int]] = {}
    found: dict[int, str] = {}
    for index, node in enumerate(graph.node):
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
        if node.op_type in _FIXED or fixed.issuperset(node.input):
            fixed.update(node.output)
            continue
        sources = frozenset[int]().union(*(divided.get(name, ()) for name in node.input))
        if sources and _decides(node):
            found[index] = "rounds a quotient, which the engine computes as a product with a reciprocal"
            found.update(
                dict.fromkeys(sources, "makes a quotient that is rounded, by multiplying with a reciprocal")
            )
        if node.op_type == "Div" and not types.is_integer(node.output[0]):
            exact = node.input[1] in constants and _by_powers_of_two(constants[node.input[1]])
            divided[node.output[0]] = sources if exact else sources | {index}
        elif sources and node.op_type in _KEEPING:
            divided.update(dict.fromkeys(node.output, sources))
    return found


def _by_powers_of_two(divisor: TensorProto) -> bool:
    at_hand = is_apart(divisor) or not is_external(divisor)
    return at_hand and are_powers_of_two(array_of(divisor))


def _decides(node: onnx.NodeProto) -> bool:
    """Whether a node makes whole numbers of others, or a choice."""
    if node.op_type != "Cast":
        return node.op_type in _DECIDING
    target = next((each.i for each in node.attribute if each.name == "to"), 0)
    return target in INTEGERS or target == TensorProto.BOOL
