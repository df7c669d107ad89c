"""Ranges of values on samples, and the steps of 8 bits that values are stored in because of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from collage.graph.dataflow import Graph
from collage.graph.storage import Storage, stored_in_steps

_SIGNED, _UNSIGNED = 127, 255
"""The numbers of steps to the largest magnitude. With -128 one sign would have a longer range than the other."""

_MARGIN = 2.0
"""How much larger than all that samples have shown a number may be before a scan stops the kernels."""

_KEEPING = frozenset(
    "concat reshape flatten squeeze expand_dims nn.max_pool1d nn.max_pool2d nn.max_pool3d".split()
)
"""Operators whose results are some of their operands' numbers, so that one scale does for all of them."""


@dataclass(frozen=True)
class Range:
    """The least and the largest number of a value that are to be told from others. Numbers beyond them saturate.

    ``seen`` is the largest magnitude on the samples, where that is not in the range.
    """

    low: float
    high: float
    seen: float = 0.0

    @property
    def limit(self) -> float:
        """The magnitude above which numbers are unlike those of the samples, so that none of them may saturate."""
        return _MARGIN * max(abs(self.low), abs(self.high), self.seen)

    def joined(self, other: Range) -> Range:
        """The least range that has both."""
        return Range(min(self.low, other.low), max(self.high, other.high), max(self.seen, other.seen))

    def storage(self, wide: Storage) -> Storage | None:
        """The storage of 8 bits in the order of ``wide`` that holds the range; None if there is no such scale.

        It is unsigned where nothing is negative. Zero is always zero, so that padding and sums need no correction.
        """
        largest = max(abs(self.low), abs(self.high))
        signed = self.low < 0
        try:
            return stored_in_steps(wide, signed, largest / (_SIGNED if signed else _UNSIGNED))
        except ValueError:
            return None


def shared(graph: Graph, ranges: Mapping[int, Range]) -> dict[int, Range]:
    """The ranges, where operators that only pick and move numbers have one range for all that they read and make.

    So a maximum of steps, or a concatenation of them, needs no rounding.
    """
    leader = {value: value for value in range(len(graph.values))}

    def found(value: int) -> int:
        while leader[value] != value:
            value = leader[value]
        return value

    for node in graph.nodes:
        if node.op in _KEEPING:
            numbers = [v for v in (*node.inputs, *node.outputs) if _is_number(graph, v)]
            for one, other in pairwise(numbers):
                leader[found(other)] = found(one)
    joined: dict[int, Range] = {}
    for value, each in ranges.items():
        if math.isfinite(each.low) and math.isfinite(each.high):
            at = found(value)
            joined[at] = joined[at].joined(each) if at in joined else each
    return {
        value: joined[found(value)] for value in leader if found(value) in joined and _is_number(graph, value)
    }


def _is_number(graph: Graph, value: int) -> bool:
    return graph.type_of(value).dtype == "float32" and not graph.is_constant(value)
