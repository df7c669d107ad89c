"""Sums that round: a large constant is added and taken away again.

``x + 12582912 - 12582912`` is the whole number next to a float32 ``x``, since float32 has no other numbers that large.
Who adds the two constants first makes ``x`` of it. ``frontend.rounding_sums`` tells the same of ONNX nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collage.graph.dataflow import Graph, Node

_LEAST = 4096.0
"""Smaller constants round so little that it is no purpose."""
_LEFT = 1 / 16
"""The share of the first constant that may be left of both."""
MOST_ELEMENTS = 1 << 16
"""Larger arrays are no such constants."""


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
    """What a sum adds to ``value``, which it negates where ``negates``."""

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
