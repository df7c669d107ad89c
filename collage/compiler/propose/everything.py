"""Everything that may be part of a faster mix: what could gain most comes first."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Sequence

from collage.backends.base import BackendKind
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.placing import NOISE_MARGIN, field_of, least_us, place
from collage.compiler.plan import Placed, Plan, Verdict
from collage.compiler.propose.mixes import calibrated, mix_of
from collage.errors import NoPlacementError
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Slower
from collage.search.candidates import candidates_of
from collage.search.cuts import Nodes, needless_cuts
from collage.search.dp import place as placed
from collage.search.placement import Placement

log = logging.getLogger(__name__)

_LEAST_PIECE, _OF_PLACING = 24, 200
"""The model is placed again after so many new measurements, or after so many for each second that placing takes."""
_FRUITLESS, _LEAST_GAIN = 4, 0.002
"""Measuring ends if so many pieces in a row have gained less than this share each."""
_OF_THE_TIME = 0.1
"""A piece that took all of the time that is left would have to gain this share."""
_WORTH_RUNNING = 0.01
"""A placement is run if it is predicted to take less time by this share than the last one that ran."""
_NEGLIGIBLE = 1e-4
"""What could replace no more than this share of the network's time is not measured."""


def everything(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """Races all offers against the kernels of the best mix, in pieces, and runs placements that promise a gain."""
    clock, mix = bench.clock.deadline, mix_of(best)
    requests = _worth(bench, mix)
    before_us, ran_us, placing_s = _predicted_us(bench), math.inf, 0.0
    if mix is not None:
        ran_us = mix.placement.predicted_us
    idle, left_s = 0, clock.remaining_s
    at = 0
    while at < len(requests):
        end = _piece_end(requests, at, max(_LEAST_PIECE, round(_OF_PLACING * placing_s)))
        bench.race(requests[at:end], mix_of(best))
        at, started = end, time.perf_counter()
        now_us = _predicted_us(bench)
        placing_s = time.perf_counter() - started
        began_s, left_s = left_s, clock.remaining_s
        least = _least_gain(began_s, left_s)
        gains = not before_us or any(now <= (1 - least) * was for now, was in zip(now_us, before_us, strict=False))
        idle = 0 if gains else idle + 1
        before_us = now_us
        if now_us and now_us[0] < (1 - _WORTH_RUNNING) * ran_us:
            yield from calibrated(bench, best, rounds=1)
            before_us = _predicted_us(bench)
            ran_us = before_us[0] if before_us else ran_us
        if idle == _FRUITLESS and bench.task.options.effort.races:
            break
    yield from calibrated(bench, best)


def doubtful(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """Kernels that lost a race early, and could be part of a better placement by their lower bounds."""
    for _ in range(2):
        mix = mix_of(best)
        hoped = _hoped(bench)
        if mix is None or hoped is None:
            return
        requests = [CandidateRequest(c.nodes, c.backend, c.variant) for c in hoped.candidates if c.outrun]
        known_us = _charged_us(place(bench))
        if not requests or _charged_us(hoped) > (1 - _LEAST_GAIN) * known_us:
            return
        bench.finish_races(requests)
        yield from calibrated(bench, best, rounds=1)


def _hoped(bench: Bench) -> Placement | None:
    """The placement with kernels that lost a race, which are charged their lower bounds."""
    known, field = bench.known, field_of(bench)
    outcomes = known.costs.expected(known.outcomes)
    lost = {request: each for request, each in outcomes.items() if isinstance(each, Slower)}
    offers = [each for each in known.offers if each.request in lost]
    more = candidates_of(bench.model, offers, (), lost, bench.task.without_switch)
    left_out = known.left_out
    more = [c for c in more if c.backend not in left_out]
    if not more:
        return None
    try:
        return placed(
            bench.model.graph,
            [*field.candidates, *more],
            known.epsilon_us,
            margin=NOISE_MARGIN,
            transforms_us=field.transforms_us,
            check=bench.clock.deadline.check,
        )
    except NoPlacementError:
        return None


def _charged_us(placement: Placement) -> float:
    """The cost that the search gives a placement in microseconds, with the noise of its kernels."""
    return placement.predicted_us + NOISE_MARGIN * sum(c.noise_us for c in placement.candidates)


def _predicted_us(bench: Bench) -> tuple[float, ...]:
    """The predicted times of the best placements by what is known, in microseconds; none if there is none.

    The second one is a bound for placements within the error budget that samples have led to, if there is one.
    """
    try:
        exact_us = place(bench).predicted_us
        errors = bench.known.errors
        return (exact_us,) if errors is None else (exact_us, least_us(bench, errors))
    except NoPlacementError:
        return ()


def _least_gain(before_s: float, left_s: float) -> float:
    """The least share that a piece has to gain, given the seconds that were left before it and are left now."""
    if not 0 < before_s < math.inf:
        return _LEAST_GAIN
    return max(_LEAST_GAIN, _OF_THE_TIME * (before_s - left_s) / before_s)


def _worth(bench: Bench, mix: Placed | None) -> list[CandidateRequest]:
    """The offers that are not measured yet, and could gain something; those first that could replace the most time."""
    known = bench.known
    requests = [o.request for o in known.offers if o.request not in known.outcomes]
    if mix is None:
        return requests
    kernels = [(c.cost_us + known.epsilon_us * c.switches, c.nodes) for c in mix.placement.candidates]
    kernel_of = {node: at for at, (_, nodes) in enumerate(kernels) for node in nodes}

    def replaced_us(nodes: Nodes) -> float:
        return sum(kernels[at][0] for at in {kernel_of[node] for node in nodes if node in kernel_of})

    share_us = {nodes: replaced_us(nodes) for nodes in {request.nodes for request in requests}}
    thorough = not bench.task.options.effort.races
    least = 0.0 if thorough else _NEGLIGIBLE * mix.placement.predicted_us
    cuts = set() if thorough else _needless_cuts(bench)
    requests.sort(key=lambda r: (-share_us[r.nodes], r.nodes))
    return [r for r in requests if share_us[r.nodes] >= least and (r.backend, r.nodes) not in cuts]


def _needless_cuts(bench: Bench) -> set[tuple[str, Nodes]]:
    """The backends and the nodes of offers that cut through a function which a compiler has fused."""
    known: dict[str, set[Nodes]] = {}
    for request, outcome in bench.known.outcomes.items():
        compiles = bench.task.backends[request.backend].kind is BackendKind.COMPILER
        if compiles and isinstance(outcome, Measurement) and not outcome.finite_only:
            known.setdefault(request.backend, set()).add(request.nodes)
    offered: dict[str, set[Nodes]] = {}
    for offer in bench.known.offers:
        offered.setdefault(offer.request.backend, set()).add(offer.request.nodes)
    return {
        (name, nodes)
        for name, whole in known.items()
        for nodes in needless_cuts(
            bench.model.graph,
            offered[name],
            set().union(*(each for other, each in offered.items() if other != name)),
            whole,
        )
    }


def _piece_end(requests: Sequence[CandidateRequest], start: int, size: int) -> int:
    """The end of the piece that begins at ``start``: whole regions with at least ``size`` requests."""
    for end in range(start + size, len(requests)):
        if requests[end].nodes != requests[end - 1].nodes:
            return end
    return len(requests)
