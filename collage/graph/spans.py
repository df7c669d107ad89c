"""Spans of values: the least and the largest number that each may hold, whatever finite numbers the inputs hold.

They follow from the operators alone, so they are wide. They are for telling divisors that may be zero from those that
may not (``domains``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import reduce

import numpy as np

from collage.graph.dataflow import Array, Graph, Node

_LARGEST_CONSTANT = 1 << 22
"""Constants of more elements may hold anything: to read them takes time, and no divisor is so large."""
_OVERFLOW = 700.0
"""From there on exp is infinite."""
_ROUNDED = 1e-4
"""By how much of itself a sum of many numbers may be off, as a bound that is on the safe side."""


class Masked(IntEnum):
    """How much of a value may be infinite, as masks are that a softmax or a minimum is to pass over."""

    NOTHING = 0
    PART_OF_ROWS = 1
    """Each row (the last axis) has a finite number, and the infinite ones are negative."""
    ROWS = 2


@dataclass(frozen=True)
class Span:
    """All numbers of a value are from ``low`` to ``high``, but for rounding, NaN and what is ``masked``."""

    low: float = -math.inf
    high: float = math.inf
    masked: Masked = Masked.NOTHING

    @property
    def has_zero(self) -> bool:
        """Whether a number may be zero."""
        return self.low <= 0 <= self.high

    def joined(self, other: Span) -> Span:
        """The least span that has both."""
        return Span(min(self.low, other.low), max(self.high, other.high), max(self.masked, other.masked))


ANYTHING = Span()


def spans(graph: Graph) -> list[Span]:
    """The span of each value of the graph, by id."""
    found = [ANYTHING] * len(graph.values)
    for each in graph.values:
        if each.id in graph.constants:
            found[each.id] = _of_constant(graph.constants[each.id])
        elif each.producer is None:
            found[each.id] = _of_type(each.type.dtype)
    for node in graph.nodes:
        taken = [found[value] for value in node.inputs]
        rule = _RULES.get(node.op)
        made = ANYTHING if rule is None else rule(graph, node, taken)
        masked = _masked(graph, node, taken)
        for value in node.outputs:
            dtype = graph.type_of(value).dtype
            if "float" not in dtype or math.isnan(made.low) or math.isnan(made.high):
                found[value] = replace(_of_type(dtype), masked=masked)  # integers wrap around
            else:
                found[value] = replace(_no_denormals(made, dtype), masked=masked)
    return found


def axes_of(node: Node, rank: int) -> tuple[int, ...]:
    """The axes that a reduction or a softmax goes over, of a tensor of that rank, ascending."""
    axis = node.attrs.get("axis")
    if axis is None:
        return tuple(range(rank))
    axes = axis if isinstance(axis, tuple) else (axis,)
    return tuple(sorted(int(each) % max(rank, 1) for each in axes if isinstance(each, (int, float))))


def _of_type(dtype: str) -> Span:
    if dtype == "bool":
        return Span(0, 1)
    return Span(0, math.inf) if dtype.startswith("uint") else ANYTHING


def _of_constant(array: Array) -> Span:
    if not 0 < array.size <= _LARGEST_CONSTANT or array.dtype.kind == "c":
        return ANYTHING
    numbers = np.asarray(array, np.float64)
    hidden = np.isinf(numbers)
    if np.isnan(numbers).any() or hidden.all():
        return Span(masked=Masked.ROWS) if hidden.any() else ANYTHING
    seen = numbers[~hidden]
    return Span(float(seen.min()), float(seen.max()), _masked_rows(hidden, np.isposinf(numbers)))


def _masked_rows(hidden: Array, positive: Array) -> Masked:
    """How much is masked where ``hidden`` is true, with positive infinities in places."""
    if not hidden.any():
        return Masked.NOTHING
    if positive.any():
        return Masked.ROWS
    whole = hidden.all(axis=-1) if hidden.ndim else hidden
    return Masked.ROWS if whole.any() else Masked.PART_OF_ROWS


def _no_denormals(span: Span, dtype: str) -> Span:
    """The span with a zero where numbers may be so small that they count as zero."""
    least = _least_normal(dtype)
    low = 0.0 if 0 < span.low < least else span.low
    high = 0.0 if -least < span.high < 0 else span.high
    return Span(low, high)


def _least_normal(dtype: str) -> float:
    """Float16 is computed in wider floats."""
    return {"float16": 2.0**-24, "float64": 2.0**-1022}.get(dtype, 2.0**-126)


_Rule = Callable[[Graph, Node, Sequence[Span]], Span]


def _of(function: Callable[..., Span]) -> _Rule:
    """The rule of an operator whose result follows from the spans of its operands alone."""
    return lambda graph, node, taken: function(*taken)


def _between(low: float, high: float) -> _Rule:
    return lambda graph, node, taken: Span(low, high)


def _rising(function: Callable[[float], float]) -> _Rule:
    """The rule of a function that never falls."""
    return lambda graph, node, taken: Span(function(taken[0].low), function(taken[0].high))


def _hull(*spans: Span) -> Span:
    return reduce(Span.joined, spans)


def _padded(graph: Graph, node: Node, taken: Sequence[Span]) -> Span:
    value = node.attrs.get("pad_value")
    return taken[0].joined(Span(value, value)) if isinstance(value, (int, float)) else ANYTHING


def _exp(number: float) -> float:
    return math.exp(number) if number < _OVERFLOW else math.inf


def _to_whole(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda number: float(function(number)) if math.isfinite(number) else number


def _root(number: float) -> float:
    return math.sqrt(max(number, 0.0))


def _logarithm(number: float) -> float:
    return math.log(number) if number > 0 else -math.inf


def _absolute(span: Span) -> Span:
    ends = abs(span.low), abs(span.high)
    return Span(0.0 if span.has_zero else min(ends), max(ends))


def _square(span: Span) -> Span:
    return _product(_absolute(span), _absolute(span))


def _negative(span: Span) -> Span:
    return Span(-span.high, -span.low)


def _sum_of(one: Span, other: Span) -> Span:
    """The span of sums, which are rounded."""
    low, high = (
        min(abs(a), abs(b)) and 2.0**-22 * max(abs(a), abs(b))
        for a, b in ((one.low, other.low), (one.high, other.high))
    )
    return Span(one.low + other.low - low, one.high + other.high + high)


def _multiply(graph: Graph, node: Node, taken: Sequence[Span]) -> Span:
    return _square(taken[0]) if node.inputs[0] == node.inputs[1] else _product(*taken[:2])


def _product(one: Span, other: Span) -> Span:
    ends = [a * b if a and b else 0.0 for a in (one.low, one.high) for b in (other.low, other.high)]
    return Span(min(ends), max(ends))


def _reciprocal(span: Span) -> Span:
    """Quotients by zero are infinite, and of the sign of the other divisors."""
    if span.low < 0 < span.high:
        return ANYTHING
    low = 1 / span.high if span.high else -math.inf
    high = 1 / span.low if span.low else math.inf
    return Span(low, high)


def _power(graph: Graph, node: Node, taken: Sequence[Span]) -> Span:
    base, exponents = taken[0], graph.constants.get(node.inputs[1])
    if exponents is not None and exponents.size == 1:
        exponent = float(exponents.reshape(-1)[0])
        if exponent == 2:
            return _square(base)
        if base.low >= 0 and exponent > 0:
            return Span(_raised(base.low, exponent), _raised(base.high, exponent))
    even = exponents is not None and bool((np.asarray(exponents, np.float64) % 2 == 0).all())
    return Span(0, math.inf) if base.low >= 0 or even else ANYTHING


def _raised(number: float, exponent: float) -> float:
    try:
        return math.pow(number, exponent)
    except OverflowError:
        return math.inf


def _clip(graph: Graph, node: Node, taken: Sequence[Span]) -> Span:
    low, high = (
        float(end) if isinstance(end, (int, float)) else default
        for end, default in ((node.attrs.get("arg1"), -math.inf), (node.attrs.get("arg2"), math.inf))
    )
    return Span(min(max(taken[0].low, low), high), min(max(taken[0].high, low), high))


def _mean(span: Span) -> Span:
    low, high = (abs(end) * _ROUNDED if math.isfinite(end) else 0.0 for end in (span.low, span.high))
    return Span(span.low - low, span.high + high)


def _sum(graph: Graph, node: Node, taken: Sequence[Span]) -> Span:
    if _of_shifted_powers(graph, node):
        return Span(1 - _ROUNDED, math.inf)
    count = graph.type_of(node.inputs[0]).size / max(graph.type_of(node.outputs[0]).size, 1)
    return _product(_mean(taken[0]), Span(count, count))


def _of_shifted_powers(graph: Graph, node: Node) -> bool:
    """Whether the node sums exp(x - max(x)) over the same axes, as a softmax in single steps does."""
    powers = _made_by(graph, node.inputs[0], "exp")
    shifted = powers and _made_by(graph, powers.inputs[0], "subtract")
    largest = shifted and _made_by(graph, shifted.inputs[1], "max")
    if not largest or not shifted or largest.inputs[0] != shifted.inputs[0]:
        return False
    rank = len(graph.type_of(largest.inputs[0]).shape)
    return bool(largest.attrs.get("keepdims")) and axes_of(node, rank) == axes_of(largest, rank)


def _made_by(graph: Graph, value: int, op: str) -> Node | None:
    producer = graph.values[value].producer
    return graph.nodes[producer] if producer is not None and graph.nodes[producer].op == op else None


_UNMASKING = frozenset(
    "exp sigmoid tanh erf nn.relu nn.relu6 clip nn.softmax equal not_equal greater greater_equal less "
    "less_equal".split()
)
"""Operators that make finite numbers of minus infinity, or hand infinity on as they do what overflows."""
_IN_ROWS = frozenset("expand_dims broadcast_to reshape squeeze flatten strided_slice astype negative".split())
"""Operators that keep rows, where they keep the last axis."""


def _masked(graph: Graph, node: Node, taken: Sequence[Span]) -> Masked:
    """How much of what the node makes may be infinite, where its operands may be."""
    by_input = [span.masked for span in taken]
    most = max(by_input, default=Masked.NOTHING)
    if most is Masked.NOTHING or node.op in _UNMASKING:
        return Masked.NOTHING
    if node.op == "where":
        return _masked_by(graph, node, taken)
    if node.op == "max":
        rank = len(graph.type_of(node.inputs[0]).shape)
        in_rows = most is Masked.PART_OF_ROWS and rank - 1 in axes_of(node, rank)
        return Masked.NOTHING if in_rows else Masked.ROWS
    alone = sum(each is not Masked.NOTHING for each in by_input) == 1
    if node.op in ("add", "subtract") and alone:
        return most
    if node.op in _IN_ROWS:
        before, after = (graph.type_of(v).shape[-1:] for v in (node.inputs[0], node.outputs[0]))
        return most if before == after else Masked.ROWS
    return Masked.ROWS


def _masked_by(graph: Graph, node: Node, taken: Sequence[Span]) -> Masked:
    """How much a ``where`` masks, which is known where its condition is a constant."""
    condition = graph.constants.get(node.inputs[0])
    numbers: list[Array] = []
    for value, span in zip(node.inputs[1:], taken[1:], strict=True):
        if span.masked is Masked.NOTHING:
            numbers.append(np.zeros(()))
        elif value in graph.constants:
            numbers.append(np.asarray(graph.constants[value], np.float64))
        else:
            return Masked.ROWS
    if condition is None or condition.size > _LARGEST_CONSTANT:
        return Masked.ROWS
    chosen = np.where(condition, *numbers)
    return _masked_rows(np.isinf(chosen), np.isposinf(chosen))


_ONE = 1 + _ROUNDED

_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys("sigmoid nn.softmax".split(), _between(0, _ONE)),
    **dict.fromkeys("tanh erf sin cos sign".split(), _between(-_ONE, _ONE)),
    **dict.fromkeys("variance std".split(), _between(0, math.inf)),
    **dict.fromkeys(
        "reshape flatten squeeze expand_dims permute_dims split strided_slice take gather_elements gather_nd repeat "
        "tile flip broadcast_to astype max min nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.pixel_shuffle "
        "nn.batch_flatten nn.dropout".split(),
        _of(lambda span, *_: span),
    ),
    **dict.fromkeys(
        "nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d "
        "nn.adaptive_avg_pool3d".split(),
        _of(lambda span: span.joined(Span(0, 0))),
    ),
    **dict.fromkeys("concat stack".split(), _of(_hull)),
    "nn.relu6": _between(0, 6),
    "nn.silu": _between(-0.3, math.inf),
    "nn.gelu": _between(-0.2, math.inf),
    "nn.gelu_tanh": _between(-0.2, math.inf),
    "nn.softplus": _between(0, math.inf),
    "nn.relu": _of(lambda span: Span(max(span.low, 0.0), max(span.high, 0.0))),
    "nn.pad": _padded,
    "where": _of(lambda condition, *chosen: _hull(*chosen)),
    "clip": _clip,
    "maximum": _of(lambda *spans: Span(max(s.low for s in spans), max(s.high for s in spans))),
    "minimum": _of(lambda *spans: Span(min(s.low for s in spans), min(s.high for s in spans))),
    "exp": _rising(_exp),
    "cosh": _between(1 - _ROUNDED, math.inf),
    "sqrt": _rising(_root),
    "log": _rising(_logarithm),
    "floor": _rising(_to_whole(math.floor)),
    "ceil": _rising(_to_whole(math.ceil)),
    "round": _rising(_to_whole(round)),
    "trunc": _rising(_to_whole(math.trunc)),
    "rsqrt": _of(lambda span: _reciprocal(Span(_root(span.low), _root(span.high)))),
    "abs": _of(_absolute),
    "square": _of(_square),
    "negative": _of(_negative),
    "add": _of(_sum_of),
    "subtract": _of(lambda one, other: _sum_of(one, _negative(other))),
    "multiply": _multiply,
    "divide": _of(lambda one, other: _product(one, _reciprocal(other))),
    "power": _power,
    "mean": _of(_mean),
    "sum": _sum,
}
