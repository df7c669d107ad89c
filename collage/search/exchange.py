"""Exchanges: what a placement costs with another candidate in it, and with the cheapest kernels for what that cuts.

A kernel that is faster alone may lose in a placement: it may cover fewer operators than the kernel in its place, it may
need layout transforms, or it may wake the threads of an engine. So a candidate is not compared with another kernel. The
placement with the candidate is compared with the placement, and everything that stays is left out on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from collage.graph.convexity import CyclicPlacementError, quotient_order
from collage.graph.dataflow import Graph
from collage.graph.storage import PLAIN
from collage.kernel.transform import LayoutTransform
from collage.search.candidate import Candidate
from collage.search.covers import is_loose
from collage.search.placement import contenders
from collage.search.transforms import ValueTransform

_MOST_COVERS = 50
"""The most covers of what a candidate cuts that are compared; the cheapest kernels for an operator come first."""
_MOST_REST, _MOST_STEPS = 200, 1000
"""The most nodes that are covered anew, and the most kernels that are tried for that."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The difference that a candidate makes to a placement, in microseconds; positive if the placement is faster.

    ``kernel_us`` is the candidate's time minus that of the placement's kernels for the same nodes, which it replaces.
    ``rest_us`` is the time of kernels for the ``rest``, the number of nodes that only the replaced kernels cover, and
    ``transforms_us`` the difference in layout transforms. Context switches are part of the times of kernels.
    ``noise_us`` is the sum of the noise of all kernels that differ, the ``replaced`` and the ``kernels``.
    """

    kernel_us: float
    rest_us: float
    transforms_us: float
    noise_us: float
    rest: int
    replaced: tuple[Candidate, ...]
    kernels: tuple[Candidate, ...]

    @property
    def total_us(self) -> float:
        """The difference in all."""
        return self.kernel_us + self.rest_us + self.transforms_us


class Exchanges:
    """Exchanges of one placement's candidates for others of the same graph.

    ``transforms_us`` has the costs of layout transforms; a candidate that needs another one has no exchange.
    """

    def __init__(
        self,
        graph: Graph,
        placed: Sequence[Candidate],
        candidates: Iterable[Candidate],
        epsilon_us: float,
        transforms_us: Mapping[ValueTransform, float],
    ) -> None:
        self._graph = graph
        self._placed = tuple(placed)
        self._epsilon_us = epsilon_us
        self._transforms_us = transforms_us
        self._owner = {node: each for each in self._placed for node in each.nodes}
        self._loose: dict[tuple[int, ...], bool] = {}
        self._containing: dict[int, list[Candidate]] = {}
        usable = [each for each in candidates if not each.outrun]
        for each in sorted(contenders(graph, [*usable, *self._placed], epsilon_us, 0.0), key=self._us_per_node):
            for node in each.nodes:
                self._containing.setdefault(node, []).append(each)

    def of(self, candidate: Candidate, *, at_least: bool = False) -> Exchange | None:
        """The exchange for this candidate, or None if nothing covers the rest, or only in a circle.

        ``at_least`` makes it a lower bound: layout transforms without a known cost cost nothing.
        """
        replaced = tuple({id(each): each for each in map(self._owner.__getitem__, candidate.nodes)}.values())
        nodes = {node for each in replaced for node in each.nodes}
        rest = sorted(nodes - {*candidate.nodes})
        before_us = self._kernels_us(replaced)
        before_transforms_us = self._between_us(nodes, replaced, 0.0)
        assert before_transforms_us is not None
        unknown_us = 0.0 if at_least else None
        found: list[tuple[float, float, float, tuple[Candidate, ...]]] = []
        for others in islice(self._covers(rest), _MOST_COVERS):
            after_us = self._between_us(nodes, (candidate, *others), unknown_us)
            if after_us is not None:
                rest_us = self._kernels_us(others)
                found.append((rest_us + after_us, rest_us, after_us - before_transforms_us, others))
        for _, rest_us, transforms_us, others in sorted(found, key=lambda each: each[0]):
            kernels = (candidate, *others)
            if self._can_run(replaced, kernels):
                noise_us = math.fsum(each.noise_us for each in (*replaced, *kernels))
                about = self._us(candidate) - before_us, rest_us, transforms_us, noise_us, len(rest)
                return Exchange(*about, replaced, kernels)
        return None

    def _covers(self, rest: Sequence[int]) -> Iterator[tuple[Candidate, ...]]:
        """Candidates that cover each node of the rest once, those of cheap kernels first; not all, if it takes long."""
        inside = {*rest}
        choices = {
            node: [each for each in self._containing.get(node, ()) if inside.issuperset(each.nodes)] for node in rest
        }
        if len(rest) > _MOST_REST or not all(choices.values()):
            return
        open_: list[tuple[tuple[int, ...], tuple[Candidate, ...]]] = [(tuple(rest), ())]
        for _ in range(_MOST_STEPS):
            if not open_:
                return
            left, chosen = open_.pop()
            if not left:
                yield chosen
                continue
            uncovered = {*left}
            for each in reversed(choices[left[0]]):
                if uncovered.issuperset(each.nodes):
                    covered = {*each.nodes}
                    open_.append((tuple(node for node in left if node not in covered), (*chosen, each)))

    def _between_us(self, nodes: set[int], kernels: Sequence[Candidate], unknown_us: float | None) -> float | None:
        """The cost of the layout transforms of all values at the nodes; None if one of them is not known.

        The ``kernels`` cover the nodes, and the placement's cover all others. Transforms without a known cost take
        ``unknown_us``, if that is given.
        """
        graph = self._graph
        owner = {node: each for each in kernels for node in each.nodes}
        touched = {v for node in nodes for v in (*graph.nodes[node].inputs, *graph.nodes[node].outputs)}
        total_us = 0.0
        for value in touched:
            if graph.is_constant(value):
                continue
            maker = graph.values[value].producer
            writer = None if maker is None else owner.get(maker) or self._owner[maker]
            stored = PLAIN if writer is None else dict(writer.writes).get(value, PLAIN)
            wanted = {PLAIN} if value in graph.output_set else set()
            for user in graph.users[value]:
                reader = owner.get(user) or self._owner[user]
                if reader is not writer:
                    wanted.add(dict(reader.reads).get(value, PLAIN))
            for storage in wanted - {stored}:
                transform = LayoutTransform(graph.type_of(value), stored, storage)
                us = self._transforms_us.get((value, transform), unknown_us)
                if us is None:
                    return None
                total_us += us
        return total_us

    def _can_run(self, replaced: Sequence[Candidate], kernels: Sequence[Candidate]) -> bool:
        """Whether the placement with the kernels has no circle. Tight ones close none (see ``covers``)."""
        if not any(map(self._is_loose, kernels)):
            return True
        gone = {*map(id, replaced)}
        kept = [each.nodes for each in self._placed if id(each) not in gone]
        try:
            quotient_order(self._graph, [*kept, *(each.nodes for each in kernels)])
        except CyclicPlacementError:
            return False
        return True

    def _is_loose(self, candidate: Candidate) -> bool:
        if candidate.nodes not in self._loose:
            self._loose[candidate.nodes] = is_loose(self._graph, candidate.nodes)
        return self._loose[candidate.nodes]

    def _kernels_us(self, kernels: Sequence[Candidate]) -> float:
        return math.fsum(map(self._us, kernels))

    def _us(self, candidate: Candidate) -> float:
        return candidate.cost_us + self._epsilon_us * candidate.switches

    def _us_per_node(self, candidate: Candidate) -> float:
        return self._us(candidate) / len(candidate.nodes)
