"""Bounds of the integers in an ONNX model, as far as they follow from the model alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx
from onnx import TensorProto

from collage.frontend.read.scopes import STANDARD
from collage.frontend.read.weights import array_of

INTEGERS: Mapping[int, tuple[int, int]] = {
    TensorProto.BOOL: (0, 1),
    TensorProto.INT8: (-(2**7), 2**7 - 1),
    TensorProto.UINT8: (0, 2**8 - 1),
    TensorProto.INT16: (-(2**15), 2**15 - 1),
    TensorProto.UINT16: (0, 2**16 - 1),
    TensorProto.INT32: (-(2**31), 2**31 - 1),
    TensorProto.UINT32: (0, 2**32 - 1),
    TensorProto.INT64: (-(2**63), 2**63 - 1),
    TensorProto.UINT64: (0, 2**64 - 1),
}
"""The least and the greatest value of each integer type. Booleans count as integers here."""


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest value. ``extents`` tells that they are calculated from extents of tensors.

    Extents, and numbers of elements, are small whatever is calculated from them, since the tensors are in memory.
    """

    low: int
    high: int
    extents: bool = False

    def within(self, low: int, high: int) -> bool:
        """Whether all values are between these two limits, inclusive."""
        return self.extents or (low <= self.low and self.high <= high)


EXTENTS = Bounds(0, 2**31 - 1, extents=True)

Rule: TypeAlias = "Callable[[_Node], Bounds | None]"


@dataclass(frozen=True)
class _Node:
    """A node, with the bounds and shapes of its inputs by position."""

    proto: onnx.NodeProto
    inputs: tuple[Bounds | None, ...]
    shapes: tuple[tuple[int, ...] | None, ...]

    def given(self, *positions: int) -> tuple[Bounds, ...] | None:
        """The bounds of the inputs at these positions, or of all inputs; None if one of them is unknown."""
        found = [self.inputs[p] for p in positions or range(len(self.inputs)) if p < len(self.inputs)]
        known = tuple(each for each in found if each is not None)
        return known if len(known) == len(found) else None


@dataclass(frozen=True)
class Types:
    """Element types and shapes of values by name. An unknown shape is absent, and an unknown extent is -1."""

    elements: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(graph: onnx.GraphProto) -> Types:
        """The types that the graph declares."""
        elements = {t.name: t.data_type for t in graph.initializer}
        shapes = {t.name: tuple(t.dims) for t in graph.initializer}
        for info in (*graph.input, *graph.value_info, *graph.output):
            tensor = info.type.tensor_type
            if info.type.WhichOneof("value") == "tensor_type" and tensor.elem_type:
                elements[info.name] = tensor.elem_type
                if tensor.HasField("shape"):
                    shapes[info.name] = tuple(
                        d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim
                    )
        return Types(elements, shapes)

    def inside(self, body: onnx.GraphProto) -> Types:
        """These types and those that a body in their scope declares."""
        own = Types.of(body)
        return Types({**self.elements, **own.elements}, {**self.shapes, **own.shapes})

    def is_integer(self, name: str) -> bool:
        """Whether the value is known to hold integers."""
        return self.elements.get(name, 0) in INTEGERS


def integer_bounds(
    graph: onnx.GraphProto, types: Types, known: Mapping[str, Bounds]
) -> Mapping[str, Bounds | None]:
    """Bounds of each integer value by name. A value of 32 or 64 bits without known bounds has None.

    ``known`` are the bounds of inputs, or of values outside the graph. The bounds of an operator's result are those of
    the mathematical result, so they may be beyond what its type holds.
    """
    found: dict[str, Bounds | None] = dict(known)
    for tensor in graph.initializer:
        if tensor.data_type in INTEGERS:
            found[tensor.name] = _of_array(array_of(tensor))
    for name in (each.name for each in graph.input):
        if name not in found:
            found[name] = _of_type(types.elements.get(name, 0))
    for node in graph.node:
        rule = _RULES.get(node.op_type) if node.domain in STANDARD else None
        for position, name in enumerate(node.output):
            if not types.is_integer(name):
                continue
            about = _Node(
                node,
                tuple(found.get(each) for each in node.input),
                tuple(types.shapes.get(each) for each in node.input),
            )
            if position in _INDICES.get(node.op_type, ()):
                found[name] = EXTENTS
            elif node.op_type in _WHOLE_TYPE:
                found[name] = _of_type(types.elements[name])
            else:
                found[name] = None if rule is None else rule(about)
    return found


def _of_type(element: int) -> Bounds | None:
    if element not in INTEGERS or element in (TensorProto.INT64, TensorProto.UINT64):
        return None
    low, high = INTEGERS[element]
    return Bounds(low, high) if high < 2**31 - 1 else None


def _of_array(array: object) -> Bounds:
    values = np.asarray(array)
    return Bounds(int(values.min()), int(values.max())) if values.size else Bounds(0, 0)


def _hull(parts: Sequence[Bounds] | None) -> Bounds | None:
    if not parts:
        return None
    return Bounds(
        min(p.low for p in parts), max(p.high for p in parts), extents=any(p.extents for p in parts)
    )


def _hull_of(*positions: int) -> Rule:
    return lambda node: _hull(node.given(*positions))


def _corners(combine: Callable[[int, int], int]) -> Rule:
    """The rule for operators whose extreme results are at extreme operands."""

    def rule(node: _Node) -> Bounds | None:
        given = node.given()
        if not given:
            return None
        total = given[0]
        for other in given[1:]:
            ends = [combine(a, b) for a in (total.low, total.high) for b in (other.low, other.high)]
            total = Bounds(min(ends), max(ends), total.extents or other.extents)
        return total

    return rule


def _clip(node: _Node) -> Bounds | None:
    """The limits of a Clip bound its result, whatever the value is."""
    given = [
        position for position in (1, 2) if position < len(node.proto.input) and node.proto.input[position]
    ]
    limits = node.given(*given) if given else ()
    if limits is None:
        return None
    if node.inputs[0] is not None:
        return _hull((node.inputs[0], *limits))
    return _hull(limits) if len(limits) == 2 else None


def _magnitude(node: _Node, of: int = 0) -> int | None:
    each = node.inputs[of] if of < len(node.inputs) else None
    return None if each is None else max(abs(each.low), abs(each.high))


def _quotient(node: _Node) -> Bounds | None:
    most = _magnitude(node)
    return None if most is None or node.given() is None else Bounds(-most, most, _any_extents(node))


def _remainder(node: _Node) -> Bounds | None:
    most = _magnitude(node, 1)
    return None if most is None else Bounds(-most, most, _any_extents(node))


def _any_extents(node: _Node) -> bool:
    return any(each is not None and each.extents for each in node.inputs)


def _negated(node: _Node) -> Bounds | None:
    given = node.given(0)
    return Bounds(-given[0].high, -given[0].low, given[0].extents) if given else None


def _absolute(node: _Node) -> Bounds | None:
    most = _magnitude(node)
    return None if most is None else Bounds(0, most, _any_extents(node))


def _total(node: _Node) -> Bounds | None:
    """The bounds of a sum over any axes: at most all elements are added."""
    given, shape = node.given(0), node.shapes[0] if node.shapes else None
    if not given or shape is None or any(extent < 0 for extent in shape):
        return EXTENTS if given and given[0].extents else None
    count = max(1, math.prod(shape))
    return Bounds(min(0, given[0].low * count), max(0, given[0].high * count), given[0].extents)


def _constant_of_shape(node: _Node) -> Bounds | None:
    value = next((a.t for a in node.proto.attribute if a.name == "value"), None)
    return Bounds(0, 0) if value is None else _of_array(array_of(value))


def _constant(node: _Node) -> Bounds | None:
    for attribute in node.proto.attribute:
        if attribute.name == "value":
            return _of_array(array_of(attribute.t))
        if attribute.name in ("value_int", "value_ints"):
            return _of_array([attribute.i] if attribute.name == "value_int" else list(attribute.ints))
    return None


def _padded(node: _Node) -> Bounds | None:
    value = len(node.proto.input) > 2 and bool(node.proto.input[2])
    given = node.given(0, 2) if value else node.given(0)
    return _hull((*given, Bounds(0, 0))) if given else None


_INDICES: Mapping[str, frozenset[int]] = {
    **dict.fromkeys("ArgMax ArgMin NonMaxSuppression NonZero Shape Size".split(), frozenset([0])),
    **dict.fromkeys(("MaxPool", "TopK"), frozenset([1])),
    "Unique": frozenset([1, 2, 3]),
}
"""Outputs, by position, that are indices or numbers of elements."""

_WHOLE_TYPE = frozenset(
    "BitwiseAnd BitwiseNot BitwiseOr BitwiseXor DynamicQuantizeLinear QLinearConv QLinearMatMul QuantizeLinear".split()
)
"""Operators whose mathematical result is never beyond its type."""

MOVES = frozenset(
    "Compress Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Reshape Slice SpaceToDepth "
    "Split Squeeze Tile Transpose Unsqueeze".split()
)
"""Operators whose outputs hold values of their inputs and no others."""

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(MOVES - {"Concat"}, _hull_of(0)),
    **dict.fromkeys(("Concat", "Max", "Min"), _hull_of()),
    **dict.fromkeys(("MaxPool", "ReduceMax", "ReduceMin", "ReduceMean", "TopK"), _hull_of(0)),
    "Relu": lambda node: _hull((*given, Bounds(0, 0))) if (given := node.given(0)) else None,
    "Cast": _hull_of(0),
    "Where": _hull_of(1, 2),
    "ScatterElements": _hull_of(0, 2),
    "ScatterND": _hull_of(0, 2),
    "Range": _hull_of(0, 1),
    "OneHot": _hull_of(2),
    "Pad": _padded,
    "Add": _corners(lambda a, b: a + b),
    "Sum": _corners(lambda a, b: a + b),
    "Sub": _corners(lambda a, b: a - b),
    "Mul": _corners(lambda a, b: a * b),
    "Div": _quotient,
    "Mod": _remainder,
    "Neg": _negated,
    "Abs": _absolute,
    "Clip": _clip,
    "ReduceSum": _total,
    "CumSum": _total,
    "Sign": lambda node: Bounds(-1, 1),
    "ConstantOfShape": _constant_of_shape,
    "Constant": _constant,
    **dict.fromkeys(
        "And Equal EyeLike Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor".split(),
        lambda node: Bounds(0, 1),
    ),
}
