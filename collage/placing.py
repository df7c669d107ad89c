"""The search between rounds of measuring: place, offer what the placement suggests, place again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.backends.base import Backend, BackendKind
from collage.errors import NoPlacementError
from collage.measure_db.measurer import Measurer
from collage.measure_db.protocol import Request
from collage.measure_db.results import Outcome
from collage.patterns.match import Match, RejectedMatch
from collage.schedule.program import VIEW
from collage.search.candidates import CandidateSet, collect
from collage.search.dp import place
from collage.search.merge import unions
from collage.search.placement import Placement

NOISE_MARGIN = 1.0
"""How many half-widths of its confidence interval a candidate is charged: a challenger must beat the noise."""

_ROUNDS = 4


@dataclass(frozen=True)
class Placing:
    """What the search found: the best placement, the best one in several parts (or None), and all candidates.

    ``search_s`` is the time spent searching, without measuring, in seconds.
    """

    placement: Placement
    mix: Placement | None
    found: CandidateSet
    search_s: float


def place_in_rounds(
    measurer: Measurer,
    backends: Mapping[str, Backend],
    matches: Sequence[Match],
    rejected: Sequence[RejectedMatch],
    outcomes: Mapping[Request, Outcome],
    epsilon_us: float,
) -> Placing:
    """Place; measure neighbours on the same engine as one region; place again, until nothing new comes up.

    Rounds are few (four at most), and what they measure is kept like everything else. Raises NoPlacementError.
    """
    graph = measurer.model.graph
    everything = tuple(range(len(graph.nodes)))
    engines = {name for name, backend in backends.items() if backend.kind is BackendKind.ENGINE}
    all_matches = list(matches)
    known = dict(outcomes)
    search_s = 0.0
    for round_ in range(_ROUNDS):
        started = time.perf_counter()
        by_match = {(r.nodes, r.backend): o for r, o in known.items()}
        found = collect(all_matches, by_match, rejected, frozenset({VIEW}))
        placement = place(graph, found.candidates, epsilon_us, margin=NOISE_MARGIN)
        mix: Placement | None = placement
        if len(placement.candidates) == 1:
            parts = [c for c in found.candidates if c.nodes != everything]
            try:
                mix = place(graph, parts, epsilon_us, margin=NOISE_MARGIN)
            except NoPlacementError:
                mix = None  # some operator has no candidate of its own
        search_s += time.perf_counter() - started
        suggested = [Request(nodes, name) for nodes, name in unions(mix, engines)] if mix else []
        new = [r for r in suggested if r not in known and r.nodes != everything]
        if not new or round_ == _ROUNDS - 1:
            break
        known.update(measurer.measure(new))
        all_matches += [Match(r.nodes, r.backend, "neighbours on one engine") for r in new]
    return Placing(placement, mix, found, search_s)
