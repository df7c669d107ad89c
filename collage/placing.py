"""The search between rounds of measuring: place, offer what the placement suggests, place again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.backends.base import VIEW, Backend, BackendKind
from collage.errors import NoPlacementError
from collage.graph.order import branch_order
from collage.measure_db.measurer import Measurer
from collage.measure_db.protocol import Request
from collage.measure_db.results import Outcome
from collage.patterns.match import Match, RejectedMatch
from collage.search.candidates import CandidateSet, Offer, collect, possible_changes
from collage.search.carve import carvings
from collage.search.dp import place
from collage.search.merge import unions
from collage.search.placement import Candidate, Placement

NOISE_MARGIN = 1.0
"""How many half-widths of its confidence interval a candidate is charged: a challenger must beat the noise."""

_ROUNDS = 6
_LARGE = 0.25
"""Regions with at least this share of the operators are carved."""


@dataclass(frozen=True)
class Placing:
    """What the search found: the best placement, the best one in several parts (or None), and all candidates.

    ``outcomes`` are all that was measured, these rounds included. ``search_s`` is the time spent searching,
    without measuring, in seconds.
    """

    placement: Placement
    mix: Placement | None
    found: CandidateSet
    outcomes: Mapping[Request, Outcome]
    search_s: float


def place_in_rounds(
    measurer: Measurer,
    backends: Mapping[str, Backend],
    offers: Sequence[Offer],
    views: Sequence[Match],
    rejected: Sequence[RejectedMatch],
    outcomes: Mapping[Request, Outcome],
    epsilon_us: float,
) -> Placing:
    """Place, measure what the placement suggests, place again, until nothing new comes up.

    Suggested are neighbours on the same engine as one region, and a large region without a kernel that another
    backend does faster. Rounds are few (six at most), and what they measure is kept like everything else.
    Conversions between layouts that a placement may need are measured as well. Raises NoPlacementError.
    """
    model = measurer.model
    graph = model.graph
    everything = tuple(range(len(graph.nodes)))
    order = branch_order(graph)
    engines = {name for name, backend in backends.items() if backend.kind is BackendKind.ENGINE}
    on_team = {name for name, backend in backends.items() if backend.on_team()}
    all_offers = list(offers)
    known = dict(outcomes)
    search_s = 0.0
    for round_ in range(_ROUNDS):
        started = time.perf_counter()
        found = collect(model, all_offers, views, known, rejected, on_team)
        search_s += time.perf_counter() - started
        changes = possible_changes(model, found.candidates)
        costs = measurer.measure_changes(dict.fromkeys(changes.values()))
        changes_us = {change: costs[each] for change, each in changes.items() if each in costs}
        started = time.perf_counter()
        placement = place(graph, found.candidates, epsilon_us, margin=NOISE_MARGIN, changes_us=changes_us)
        mix: Placement | None = placement
        if len(placement.candidates) == 1:
            parts = [c for c in found.candidates if c.nodes != everything]
            try:
                mix = place(graph, parts, epsilon_us, margin=NOISE_MARGIN, changes_us=changes_us)
            except NoPlacementError:
                mix = None  # some operator has no candidate of its own
        search_s += time.perf_counter() - started
        suggested: dict[Request, str] = {}
        for nodes, name in unions(mix, engines, {VIEW}) if mix else []:
            suggested[Request(nodes, name)] = "neighbours on one engine"
        for region in _large_regions(found.candidates, placement, mix, everything, engines):
            for nodes in carvings(order, found.candidates, region, epsilon_us):
                suggested.setdefault(
                    Request(nodes, region.backend), "beside a kernel that another does faster"
                )
        new = {r: why for r, why in suggested.items() if r not in known and r.nodes != everything}
        if not new or round_ == _ROUNDS - 1:
            break
        known.update(measurer.measure(list(new)))
        all_offers += [Offer(request, why) for request, why in new.items()]
    return Placing(placement, mix, found, known, search_s)


def _large_regions(
    candidates: Sequence[Candidate],
    placement: Placement,
    mix: Placement | None,
    everything: tuple[int, ...],
    engines: set[str],
) -> list[Candidate]:
    """The best engine's whole model, and the large regions of engines in the placements."""
    whole = [c for c in candidates if c.nodes == everything and c.backend in engines]
    found = sorted(whole, key=lambda c: (c.cost_us, c.backend))[:1]
    for each in (placement, mix):
        if each is not None:
            found += [
                c
                for c in each.candidates
                if c.backend in engines and len(c.nodes) >= _LARGE * len(everything)
            ]
    return list(dict.fromkeys(found))
