"""Activations that the importer leaves as several operators (GELU, SiLU, hard swish), recognised by algebra.

What the operators compute is expanded to a polynomial whose variables are the value they begin with and
transcendental functions of such polynomials: x · 0.5 · (1 + erf(x / √2)) is ½ x + ½ x·erf(0.707 x) however it
was bracketed.

Softplus and mish are none of them. oneDNN's are 13 % off at -12, and further down its Softplus is zero or negative, so
that the logarithm, root or reciprocal is lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from collage.backends.chains.functions import DnnlAlgorithm, Eltwise
from collage.graph.dataflow import Graph, Node
from collage.graph.decisions import decides, rounds_by_sum
from collage.graph.views import is_view

_MAX_TERMS, _MAX_DEGREE = 8, 4
_TOLERANCES = {"float16": 2.0**-10}
"""How far a constant may be from the one of the formula: two roundings of its dtype. It is ``_TOLERANCE`` elsewhere."""
_TOLERANCE = 1e-5

Terms: TypeAlias = "tuple[tuple[tuple[Atom, ...], float], ...]"


@dataclass(frozen=True)
class Atom:
    """A variable of a polynomial: the value itself, where ``function`` is "", or a function of another polynomial."""

    function: str = ""
    of: Terms = ()
    bounds: tuple[float, ...] = ()


_X = Atom()
_ATOMS = ("erf", "tanh", "sigmoid", "exp", "nn.relu")
_Polynomial: TypeAlias = "dict[tuple[Atom, ...], float]"


@dataclass(frozen=True)
class Recognised:
    """The nodes that together are ``functions``, and the value they end in."""

    nodes: tuple[int, ...]
    functions: tuple[Eltwise, ...]
    result: int


def recognise(graph: Graph, left: Mapping[int, Node], value: int) -> Recognised | None:
    """The largest group of nodes of ``left`` that computes one activation of ``value``, if there is one."""
    near = _TOLERANCES.get(graph.type_of(value).dtype, _TOLERANCE)
    for end in sorted(left, reverse=True):
        node = left[end]
        if len(node.outputs) != 1:
            continue
        reader = _Reader(graph, left, value)
        terms = reader.expand(node.outputs[0])
        functions = _match(terms, near) if terms else None
        if functions is None or not _closed(graph, reader.nodes, value, end):
            continue
        divisions = [graph.nodes[each] for each in reader.nodes if graph.nodes[each].op == "divide"]
        linear = [each.algorithm == DnnlAlgorithm.LINEAR for each in functions]
        if divisions and (linear[0] or (any(linear) and any(decides(graph, each) for each in divisions))):
            continue  # a quotient is not the product with a rounded reciprocal
        if any(rounds_by_sum(graph, graph.nodes[each]) for each in reader.nodes):
            continue
        return Recognised(tuple(sorted(reader.nodes)), functions, node.outputs[0])
    return None


def _closed(graph: Graph, nodes: set[int], value: int, end: int) -> bool:
    """Whether no other node reads what the nodes compute on the way."""
    for node in nodes - {end}:
        for output in graph.nodes[node].outputs:
            if output in graph.output_set or not set(graph.users[output]) <= nodes:
                return False
    return True


class _Reader:
    """Expands values to polynomials, and notes the nodes that it came through."""

    def __init__(self, graph: Graph, left: Mapping[int, Node], base: int) -> None:
        self.graph, self.left, self.base = graph, left, base
        self.nodes: set[int] = set()
        self._expanded: dict[int, _Polynomial | None] = {}

    def expand(self, value: int) -> _Polynomial | None:
        if value not in self._expanded:  # without this the time doubles with each node of x * x * x * x
            self._expanded[value] = self._expand(value)
        return self._expanded[value]

    def _expand(self, value: int) -> _Polynomial | None:
        if value == self.base:
            return {(_X,): 1.0}
        constant = self.graph.constants.get(value)
        if constant is not None:
            return {(): float(np.asarray(constant).reshape(()))} if constant.size == 1 else None
        node = self.left.get(-1 if (p := self.graph.values[value].producer) is None else p)
        if node is None:
            return None
        if self.graph.type_of(node.outputs[0]).size != self.graph.type_of(self.base).size:
            return None  # two views of the value are broadcast against each other
        parts = [self.expand(each) for each in node.inputs]
        found = [each for each in parts if each is not None]
        if len(found) < len(parts):
            return None
        self.nodes.add(node.id)
        result = self._apply(node, found)
        if result is None or len(result) > _MAX_TERMS or any(len(each) > _MAX_DEGREE for each in result):
            return None
        return result

    def _apply(self, node: Node, parts: list[_Polynomial]) -> _Polynomial | None:
        op = node.op
        if is_view(self.graph, node):
            return parts[0]
        if len(parts) == 2:
            return _arithmetic(op, *parts)
        if op == "square":
            return _product(parts[0], parts[0])
        if op == "negative":
            return _product(parts[0], {(): -1.0})
        if op in _ATOMS:
            return {(Atom(op, _terms(parts[0])),): 1.0}
        low, high = node.attrs.get("arg1"), node.attrs.get("arg2")
        if op == "nn.relu6":
            low, high = 0.0, 6.0
        if op in ("clip", "nn.relu6") and isinstance(low, (int, float)) and isinstance(high, (int, float)):
            return {(Atom("clip", _terms(parts[0]), (float(low), float(high))),): 1.0}
        return None


def _arithmetic(op: str, a: _Polynomial, b: _Polynomial) -> _Polynomial | None:
    if op == "add":
        return _sum(a, b)
    if op == "subtract":
        return _sum(a, _product(b, {(): -1.0}))
    if op == "multiply":
        return _product(a, b)
    number = b[()] if set(b) == {()} else None
    if op == "divide" and number:
        return _product(a, {(): 1.0 / number})
    if op == "maximum" and number == 0.0:
        return {(Atom("nn.relu", _terms(a)),): 1.0}
    if op == "power" and number in (2.0, 3.0):
        square = _product(a, a)
        return square if number == 2.0 else _product(square, a)
    return None


def _sum(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    return {term: a.get(term, 0.0) + b.get(term, 0.0) for term in {**a, **b}}


def _product(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    result: _Polynomial = {}
    for left, x in a.items():
        for right, y in b.items():
            term = tuple(sorted((*left, *right), key=lambda atom: (atom.function, hash(atom))))
            result[term] = result.get(term, 0.0) + x * y
    return result


def _terms(polynomial: _Polynomial) -> Terms:
    return tuple(sorted(polynomial.items(), key=lambda item: (len(item[0]), hash(item[0]))))


def _match(polynomial: _Polynomial, near: float) -> tuple[Eltwise, ...] | None:
    """Eltwise algorithms, one after the other, that compute the polynomial; constants may be off by ``near``."""
    terms = {term: x for term, x in polynomial.items() if x != 0.0}
    if set(terms) <= {(_X,), ()} and (_X,) in terms:
        return (Eltwise(DnnlAlgorithm.LINEAR, terms[_X,], terms.get((), -0.0)),)
    return _elu(terms) or _gated(terms, near)


def _gated(terms: _Polynomial, near: float) -> tuple[Eltwise, ...] | None:
    """The algorithm of x times a function of x: GELU, SiLU or hard swish."""
    products = [term for term in terms if len(term) == 2 and term[0] == _X and term[1].function]
    if len(products) != 1 or set(terms) - {products[0], (_X,)}:
        return None
    gate = products[0][1]
    scale, rest, inner = terms[products[0]], terms.get((_X,), 0.0), dict(gate.of)
    if gate.function in ("erf", "tanh") and _close(rest, scale):
        gelu = _gelu(gate.function, inner, near)
        return None if gelu is None else _scaled(Eltwise(gelu), 2 * scale)
    if rest != 0.0:
        return None
    if gate.function == "sigmoid" and set(inner) == {(_X,)}:
        return _scaled(Eltwise(DnnlAlgorithm.SWISH, inner[_X,]), scale)
    if gate.function == "clip" and set(inner) <= {(_X,), ()} and (_X,) in inner:
        low, high = gate.bounds
        if low == 0.0 and 0.0 < high < math.inf:
            hard = Eltwise(DnnlAlgorithm.HARD_SWISH, inner[_X,] / high, inner.get((), 0.0) / high)
            return _scaled(hard, scale * high)
    return None


def _elu(terms: _Polynomial) -> tuple[Eltwise, ...] | None:
    """The algorithm of max(x, 0) - alpha max(1 - exp(x), 0)."""
    positive = (Atom("nn.relu", _terms({(_X,): 1.0})),)
    growth = Atom("exp", _terms({(_X,): 1.0}))
    negative = (Atom("nn.relu", _terms({(): 1.0, (growth,): -1.0})),)
    if set(terms) != {positive, negative} or terms[positive] != 1.0:
        return None
    return (Eltwise(DnnlAlgorithm.ELU, -terms[negative]),)


def _gelu(function: str, inner: _Polynomial, near: float) -> DnnlAlgorithm | None:
    if function == "erf":
        return DnnlAlgorithm.GELU_ERF if _is(inner, {(_X,): math.sqrt(0.5)}, near) else None
    slope = math.sqrt(2 / math.pi)
    wanted: _Polynomial = {(_X,): slope, (_X, _X, _X): slope * 0.044715}
    return DnnlAlgorithm.GELU_TANH if _is(inner, wanted, near) else None


def _is(found: _Polynomial, wanted: _Polynomial, near: float) -> bool:
    return set(found) == set(wanted) and all(_close(found[term], wanted[term], near) for term in wanted)


def _close(a: float, b: float, near: float = _TOLERANCE) -> bool:
    return math.isclose(a, b, rel_tol=near)


def _scaled(function: Eltwise, by: float) -> tuple[Eltwise, ...]:
    return (function,) if _close(by, 1.0) else (function, Eltwise(DnnlAlgorithm.LINEAR, by, -0.0))
