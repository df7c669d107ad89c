"""Arithmetic that has to be done as it is written, since its last bit decides something, or since it rounds.

Operators that make whole numbers or choices decide. Quotients before them are divided, not multiplied by reciprocals;
sums beside them keep their order. ``x + 12582912 - 12582912`` rounds ``x``, which nobody may simplify.
``frontend.rewrite.rounded_quotients`` finds quotients among ONNX nodes, for engines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collage.graph.dataflow import Graph, Node

_DECIDING = frozenset(
    "floor ceil round trunc mod floor_mod floor_divide equal not_equal greater greater_equal less less_equal "
    "sign".split()
)
_LEAST = 4096.0
"""Smaller constants round so little that it is no purpose."""
_LEFT = 1 / 16
"""The share of the first constant that may be left of both."""
MOST_ELEMENTS = 1 << 16
"""Larger arrays are no such constants."""
_ALIKE = {"add": "sum", "subtract": "sum", "multiply": "product"}
_KEEPING = frozenset(
    "add subtract multiply divide negative abs nn.relu nn.relu6 clip maximum minimum where reshape flatten squeeze "
    "expand_dims permute_dims broadcast_to concat stack split strided_slice take gather_elements gather_nd repeat tile "
    "flip".split()
)
"""Operators whose results may be whole numbers, or equal to a bound, where those of their operands are."""


def decides(graph: Graph, node: Node) -> bool:
    """Whether what the node makes is rounded or compared, perhaps after sums, products and choices."""
    pending, seen = [node.id], {node.id}
    while pending:
        for number in graph.successors[pending.pop()]:
            if number in seen:
                continue
            seen.add(number)
            reader = graph.nodes[number]
            if reader.op in _DECIDING or (reader.op == "astype" and _is_whole(graph, reader)):
                return True
            if reader.op in _KEEPING:
                pending.append(number)
    return False


def as_written(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Whether the arithmetic of these nodes has to be done as it is written, since the last bit matters."""
    return any(
        rounds_by_sum(graph, node) or ((node.op == "divide" or _goes_on(graph, node)) and decides(graph, node))
        for node in nodes
    )


def _goes_on(graph: Graph, node: Node) -> bool:
    """Whether the node adds a constant to what one was added to, or multiplies again, which could be done at once."""
    value = _only_value(graph, node)
    producer = None if value is None else graph.values[value].producer
    if producer is None or _only_value(graph, graph.nodes[producer]) is None:
        return False
    return _ALIKE[graph.nodes[producer].op] == _ALIKE[node.op]


def _only_value(graph: Graph, node: Node) -> int | None:
    """The operand of a sum or product with a constant; None for any other node."""
    if node.op not in _ALIKE:
        return None
    values = [value for value in node.inputs if not graph.is_constant(value)]
    return values[0] if len(values) == 1 else None


def _is_whole(graph: Graph, node: Node) -> bool:
    dtype = graph.type_of(node.outputs[0]).dtype
    return "int" in dtype or dtype == "bool"


def are_powers_of_two(divisors: npt.ArrayLike) -> bool:
    """Whether all are powers of two, of either sign. The reciprocal of another number is rounded: 41 * (1 / 41) < 1."""
    mantissas, _ = np.frexp(np.asarray(divisors, np.float64))
    return bool((np.abs(mantissas) == 0.5).all())


def leaves_little(first: npt.NDArray[np.float64], left: npt.NDArray[np.float64]) -> bool:
    """Whether any of large constants is next to nothing once another constant was added."""
    with np.errstate(all="ignore"):
        return bool(((np.abs(first) >= _LEAST) & (np.abs(left) <= _LEFT * np.abs(first))).any())


def rounds_by_sum(graph: Graph, node: Node) -> bool:
    """Whether the node adds such a constant, or takes it away."""
    own = _term(graph, node)
    if own is None:
        return False
    readers = (graph.nodes[number] for number in graph.users[node.outputs[0]])
    if any((after := _term(graph, each)) is not None and _cancels(own, after) for each in readers):
        return True
    producer = graph.values[own.value].producer
    before = None if producer is None else _term(graph, graph.nodes[producer])
    return before is not None and _cancels(before, own)


@dataclass(frozen=True)
class _Term:
    """What a sum adds to ``value``, which it negates if ``negates``."""

    value: int
    term: npt.NDArray[np.float64]
    negates: bool = False


def _cancels(before: _Term, after: _Term) -> bool:
    """Whether little is left of a large constant that is added ``before`` when the next one is added to the result."""
    first, second = before.term, -after.term if after.negates else after.term
    try:
        return leaves_little(first, first + second)
    except ValueError:  # they do not broadcast
        return False


def _term(graph: Graph, node: Node) -> _Term | None:
    """The term of a sum or difference with a constant of floats that is not large; None for any other node."""
    if node.op not in ("add", "subtract"):
        return None
    left, right = node.inputs
    if graph.is_constant(left) == graph.is_constant(right):
        return None
    first, subtracts = graph.is_constant(left), node.op == "subtract"
    value, constant = (right, graph.constants[left]) if first else (left, graph.constants[right])
    if constant.dtype.kind != "f" or constant.size > MOST_ELEMENTS:
        return None
    wide: npt.NDArray[np.float64] = constant.astype(np.float64)
    return _Term(value, -wide if subtracts and not first else wide, subtracts and first)
