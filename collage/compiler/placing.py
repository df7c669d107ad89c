"""The search between rounds of measuring: place, offer what the placement suggests, place again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from collage.backends.base import VIEW, Backend, BackendKind
from collage.errors import NoPlacementError
from collage.graph.order import branch_order
from collage.kernel.transform import LayoutTransform
from collage.measure_db.measurer import Measurer
from collage.measure_db.protocol import Request
from collage.measure_db.results import IN_NETWORK, Measurement, Outcome, Rejection
from collage.patterns.match import Match, RejectedMatch
from collage.search.candidate import Candidate
from collage.search.candidates import CandidateSet, Offer, collect, possible_transforms
from collage.search.carve import carvings
from collage.search.corrections import NO_CORRECTIONS, Corrections
from collage.search.dp import place
from collage.search.merge import unions
from collage.search.placement import Placement
from collage.search.transforms import ValueTransform

NOISE_MARGIN = 1.0
"""How many half-widths of its confidence interval a candidate is charged: a challenger must beat the noise."""

_ROUNDS = 6
_MOST_FAULTS = 5
_LARGE = 0.25
"""Regions with at least this share of the operators are carved."""


@dataclass(frozen=True)
class Placing:
    """What the search found: the best placement, the best one in several parts (or None), and all candidates.

    ``transforms_us`` are the costs of layout transforms; ``search_s`` is the time spent searching, without
    measuring, in seconds.
    """

    placement: Placement
    mix: Placement | None
    found: CandidateSet
    transforms_us: Mapping[ValueTransform, float]
    search_s: float


@dataclass
class Placer:
    """Places one model. ``offers`` and ``outcomes`` are all that was measured, what ``place`` asked for included.

    ``views`` cost nothing; ``rejected`` are the matches that cannot be used, for the report.
    """

    measurer: Measurer
    backends: Mapping[str, Backend]
    epsilon_us: float
    offers: list[Offer]
    outcomes: dict[Request, Outcome]
    views: Sequence[Match]
    rejected: Sequence[RejectedMatch]
    left_out: frozenset[str] = frozenset()
    """Backends that no placement may have."""
    faulty: frozenset[str] = frozenset()
    """The same, because too many of their kernels have failed in networks: each costs a worker, or a time limit."""

    def place(self, corrections: Corrections = NO_CORRECTIONS) -> Placing:
        """Place, measure what the placement suggests, place again, until nothing new comes up.

        Suggested are neighbours on the same engine as one region, and a large region without a kernel that
        another backend does faster. Rounds are few (six at most), and what they measure is kept like everything
        else. Layout transforms that a placement may need are measured as well. ``corrections`` are
        times inside the network, which count instead of those measured alone. Raises NoPlacementError.
        """
        for _ in range(_ROUNDS):
            placing = self._search(corrections)
            new = self._suggestions(placing)
            if not new:
                break
            self.outcomes.update(self.measurer.measure([offer.request for offer in new]))
            self.offers += new
        return placing

    def refresh(self) -> None:
        """Take over what was rejected since it was measured, by whoever ran it in a network."""
        self.outcomes.update(self.measurer.known(self.outcomes))
        failed = {
            self.measurer.key(request)
            for request, outcome in self.outcomes.items()
            if isinstance(outcome, Rejection) and outcome.message.startswith(IN_NETWORK)
        }
        counts = Counter(key.backend for key in failed)
        self.faulty = frozenset(name for name, count in counts.items() if count >= _MOST_FAULTS)

    def without_mix(self, placing: Placing) -> Placing:
        """The placing where the mix cannot be used: one kernel has all of the model. Raises NoPlacementError."""
        if placing.placement is not placing.mix:
            return replace(placing, mix=None)
        graph = self.measurer.model.graph
        idle = {n for view in self.views for n in view.nodes}
        whole = [c for c in placing.found.candidates if len({*c.nodes, *idle}) == len(graph.nodes)]
        placement = place(
            graph, whole, self.epsilon_us, margin=NOISE_MARGIN, transforms_us=placing.transforms_us
        )
        return replace(placing, mix=None, placement=placement)

    def tunings(self) -> dict[Request, str]:
        """The records of Backend.tune."""
        return {
            request: outcome.tuning
            for request, outcome in self.outcomes.items()
            if isinstance(outcome, Measurement) and outcome.tuning
        }

    def _search(self, corrections: Corrections) -> Placing:
        model = self.measurer.model
        graph = model.graph
        on_team = {name for name, backend in self.backends.items() if backend.on_team()}
        outcomes = corrections.outcomes(self.outcomes)
        found = collect(model, self.offers, self.views, outcomes, self.rejected, on_team)
        transforms_us = self._transforms_us(found.candidates)
        transforms_us |= {each: us for each, us in corrections.transforms_us.items() if each in transforms_us}
        started = time.perf_counter()
        best = partial(
            place, graph, epsilon_us=self.epsilon_us, margin=NOISE_MARGIN, transforms_us=transforms_us
        )
        usable = [c for c in found.candidates if c.backend not in self.left_out | self.faulty]
        placement = best(usable)
        mix: Placement | None = placement
        if len(placement.candidates) == 1:
            try:
                mix = best([c for c in usable if len(c.nodes) < len(graph.nodes)])
            except NoPlacementError:
                mix = None  # some operator has no candidate of its own
        return Placing(placement, mix, found, transforms_us, time.perf_counter() - started)

    def _transforms_us(self, candidates: Sequence[Candidate]) -> dict[ValueTransform, float]:
        possible = possible_transforms(self.measurer.model, candidates)
        costs = self.measurer.measure_transforms(dict.fromkeys(transform for _, transform in possible))
        return {
            (value, each): costs[each] + self._switch_us(each) for value, each in possible if each in costs
        }

    def _switch_us(self, transform: LayoutTransform) -> float:
        """What a layout transform pays for a context switch: nothing on Collage's own team."""
        maker = self.measurer.transform_backend(transform)
        return 0.0 if maker is None or maker.on_team() else self.epsilon_us

    def _suggestions(self, placing: Placing) -> list[Offer]:
        """Regions of engines to measure before the next round."""
        graph = self.measurer.model.graph
        engines = {name for name, each in self.backends.items() if each.kind is BackendKind.ENGINE}
        suggested: dict[Request, str] = {}
        for nodes, name in unions(placing.mix, engines, {VIEW}) if placing.mix else []:
            suggested[Request(nodes, name)] = "neighbours on one engine"
        order = branch_order(graph)
        for region in _large_regions(placing, len(graph.nodes), engines):
            for nodes in carvings(order, placing.found.candidates, region, self.epsilon_us):
                suggested.setdefault(
                    Request(nodes, region.backend), "beside a kernel that another does faster"
                )
        return [
            Offer(request, why)
            for request, why in suggested.items()
            if request not in self.outcomes and len(request.nodes) < len(graph.nodes)
        ]


def _large_regions(placing: Placing, count: int, engines: Collection[str]) -> list[Candidate]:
    """The best engine's whole model (of ``count`` nodes), and the large regions of engines in the placements."""
    whole = [c for c in placing.found.candidates if len(c.nodes) == count and c.backend in engines]
    found = sorted(whole, key=lambda c: (c.cost_us, c.backend))[:1]
    for each in (placing.placement, placing.mix):
        if each is not None:
            found += [c for c in each.candidates if c.backend in engines and len(c.nodes) >= _LARGE * count]
    return list(dict.fromkeys(found))
