"""The storages in a state of the dynamic program: where values are held, and what a candidate adds to the cost.

A value matters when some candidate reads or writes it in another storage than the plain one. Its storages are those
that candidates name for it, and the plain one. They are numbered for each value, so that nothing here knows which
devices and formats exist. While the value crosses the edge between covered and uncovered nodes, a state holds the
storage that it was written in, and those that it has been brought to or is wanted in. Its readers may be covered
before its writer; then only what they want is known, and the transforms are paid for when the writer is covered.

**Dominance.** State B can become like state A: each value that they hold differently is brought from B's own storage
to those that A has the value in. For a storage that neither has the value in yet, B later pays at most the difference
of the two transforms more than A. Where B's cost and these sums are no more than A's cost, A can be dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from collage.graph.dataflow import Graph, TensorType
from collage.graph.storage import PLAIN, Storage
from collage.kernel.transform import LayoutTransform
from collage.search.candidate import Candidate
from collage.search.transforms import ValueTransform

_PLAIN = 0
"""Number of the plain storage, for each value."""
_UNKNOWN = -1
_NEVER = 1 << 200
"""The weight of a layout transform that cannot be made."""

Held: TypeAlias = "tuple[tuple[int, int, int], ...]"
"""For each held value, ascending: (value, storage that it was written in or -1, mask of other storages wanted).

A storage is its number for the value. A covered value that is plain and wanted in nothing else is left out.
"""

Ports: TypeAlias = "tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] | None"
"""What a candidate reads and what it writes of the values that matter, as (value, number of the storage), or None."""

_COUNT_BITS = 24
_UNITS_PER_US = 1_000_000


def weight(charge_us: float) -> int:
    """The charge in picoseconds, with a count of one in the low bits: sums compare by cost, then by number of kernels.

    Integers add up to the same sum in any order. So equal costs are equal, and ties are broken by the number of kernels
    and not by rounding.
    """
    return round(charge_us * _UNITS_PER_US) << _COUNT_BITS | 1


class StorageRules:
    """What layout transforms cost, and until when a value is held."""

    def __init__(
        self,
        graph: Graph,
        order: Sequence[int],
        candidates: Iterable[Candidate],
        transforms_us: Mapping[ValueTransform, float],
    ) -> None:
        self._graph = graph
        named: dict[int, set[Storage]] = {}
        for candidate in candidates:
            for value, storage in (*candidate.reads, *candidate.writes):
                named.setdefault(value, {PLAIN}).add(storage)
        position = {node: at for at, node in enumerate(order)}
        self._writer: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._numbers: dict[int, dict[Storage, int]] = {}
        self._costs: dict[int, list[list[int]]] = {}
        for value, storages in named.items():
            listed = [PLAIN, *sorted(storages - {PLAIN})]
            self._numbers[value] = {storage: number for number, storage in enumerate(listed)}
            producer = graph.values[value].producer
            self._writer[value] = -1 if producer is None else position[producer]
            touched = [position[user] for user in graph.users[value]] + [self._writer[value]]
            self._last[value] = max(touched)
            self._costs[value] = _table(value, graph.type_of(value), listed, transforms_us)

    @property
    def matter(self) -> bool:
        """Whether any value is held in several storages."""
        return bool(self._last)

    @property
    def values(self) -> tuple[int, ...]:
        """The values that matter."""
        return tuple(self._last)

    def span(self, value: int) -> tuple[int, int]:
        """The positions of the value's writer, -1 where there is none, and of the last node that touches it."""
        return self._writer[value], self._last[value]

    def is_output(self, value: int) -> bool:
        """Whether the value is an output of the graph."""
        return value in self._graph.output_set

    def table(self, value: int) -> Sequence[Sequence[int]]:
        """Weights of the value's layout transforms, by the numbers of its storages."""
        return self._costs[value]

    def ports(self, candidate: Candidate) -> Ports:
        """The candidate's reads and writes of the values that matter."""
        if not self._last:
            return None
        graph, inside = self._graph, set(candidate.nodes)
        reads, writes = dict(candidate.reads), dict(candidate.writes)
        read: dict[int, int] = {}
        written: dict[int, int] = {}
        for node in candidate.nodes:
            for value in graph.nodes[node].inputs:
                if value in self._last and graph.values[value].producer not in inside:
                    read[value] = self._numbers[value][reads.get(value, PLAIN)]
            for value in graph.nodes[node].outputs:
                escapes = value in graph.output_set or any(u not in inside for u in graph.users[value])
                if value in self._last and escapes:
                    written[value] = self._numbers[value][writes.get(value, PLAIN)]
        return (tuple(sorted(read.items())), tuple(sorted(written.items()))) if read or written else None

    def instead_of(self, better: Ports, worse: Ports) -> int:
        """The most weight of layout transforms that one candidate adds when it replaces another for the same nodes."""
        if better is None or worse is None:
            return 0
        total = 0
        for (value, mine), (_, others) in zip(better[0], worse[0], strict=True):
            if mine != others:  # it may come in any storage, and be there in the other's for another reader
                total += max(costs[mine] for costs in self._costs[value])
        for (value, mine), (_, others) in zip(better[1], worse[1], strict=True):
            costs, other_costs = self._costs[value][mine], self._costs[value][others]
            total += costs[others]
            for third in range(len(costs)):
                if third not in (mine, others):
                    total += max(0, costs[third] - other_costs[third])
        return total

    def transition(self, held: Held, ports: Ports, at: int, covered: int, then: int) -> tuple[Held, int] | None:
        """What a state holds after a candidate, and the weight of the layout transforms that this needs.

        ``covered`` is the mask of covered nodes from position ``at`` on, before the candidate. ``then`` is the position
        of the next uncovered node after it. The result is None when a transform that is needed cannot be made.
        """
        if ports is None:
            return tuple(entry for entry in held if self._last[entry[0]] >= then), 0
        read, written = ports
        now = {entry[0]: entry[1:] for entry in held}
        extra = 0
        for value, storage in read:
            given, wanted = now.get(value) or self._before(value, at, covered)
            if given == storage or wanted >> storage & 1:
                continue
            if given != _UNKNOWN:
                extra += self._costs[value][given][storage]
            now[value] = (given, wanted | 1 << storage)
        for value, storage in written:
            wanted = now[value][1] if value in now else 0
            if value in self._graph.output_set:
                wanted |= 1 << _PLAIN
            wanted &= ~(1 << storage)
            if wanted:
                for other, cost in enumerate(self._costs[value][storage]):
                    if wanted >> other & 1:
                        extra += cost
            now[value] = (storage, wanted)
        if extra >= _NEVER:
            return None
        kept = [
            (value, given, wanted)
            for value, (given, wanted) in now.items()
            if self._last[value] >= then and (given != _PLAIN or wanted)
        ]
        return tuple(sorted(kept)), extra

    def becoming(self, held: Held, other: Held) -> int:
        """An upper bound on the weight of becoming the other state (see the top of this file)."""
        differing = {entry[0] for entry in set(held).symmetric_difference(other)}
        mine = {value: (given, wanted) for value, given, wanted in held if value in differing}
        theirs = {value: (given, wanted) for value, given, wanted in other if value in differing}
        total = 0
        for value in differing:
            given, wanted = mine.get(value, (_PLAIN, 0))
            other_given, other_wanted = theirs.get(value, (_PLAIN, 0))
            if _UNKNOWN in (given, other_given):
                return _NEVER
            available, other_available = wanted | 1 << given, other_wanted | 1 << other_given
            costs, other_costs = self._costs[value][given], self._costs[value][other_given]
            for storage, cost in enumerate(costs):
                if not available >> storage & 1:
                    if other_available >> storage & 1:
                        total += cost
                    else:
                        total += max(0, cost - other_costs[storage])
        return total

    def _before(self, value: int, at: int, covered: int) -> tuple[int, int]:
        """The storages of a value that is not held: it is plain when its writer is covered, else unknown."""
        writer = self._writer[value]
        done = writer < at or covered >> (writer - at) & 1
        return (_PLAIN, 0) if done else (_UNKNOWN, 0)


def _table(
    value: int, kind: TensorType, storages: Sequence[Storage], transforms_us: Mapping[ValueTransform, float]
) -> list[list[int]]:
    """Weights of the value's layout transforms, by the numbers of its storages."""

    def weigh(source: Storage, target: Storage) -> int:
        if source == target:
            return 0
        cost = transforms_us.get((value, LayoutTransform(kind, source, target)), math.inf)
        return _NEVER if math.isinf(cost) else weight(cost)

    return [[weigh(source, target) for target in storages] for source in storages]
