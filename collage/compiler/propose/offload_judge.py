"""The judge of the graph level: it builds and runs the network that a string of digits stands for, and remembers it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from collage.compiler.bench import Bench
from collage.compiler.events import Considered
from collage.compiler.placing import Field, field_of, place
from collage.compiler.plan import Placed
from collage.compiler.propose.mixes import planned
from collage.compiler.referee import RaceFailedError, Referee
from collage.compiler.verdict import Failed
from collage.errors import CollageError, NoPlacementError
from collage.measure.timing.interleave import FEWEST, SURE, Pace
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.keys import Fact, as_number
from collage.measure_db.results import Measurement, Outcome, Rejection
from collage.search.candidate import Candidate
from collage.search.candidates import candidate_of, with_floor
from collage.search.evolution import Cost, Trial
from collage.search.offload import Encoding, Genome, Offloaded
from collage.search.placement import Placement

log = logging.getLogger(__name__)

LABEL = "graph level"
_SHORT = Pace(rounds=8, least=FEWEST, limit_s=3.0)
_LONG = Pace(rounds=30, least=SURE, limit_s=6.0)
_TRIAL_S: Fact[float] = Fact("trial_s", float, as_number)
_HOPELESS = 1.3
"""A factor on the sum of the op level. Where the regions and kernels of a proposal, measured alone, take longer than
this, the network is not run. The sum is within a tenth of the whole, and it takes longer to build a network than to
measure its regions."""


class OffloadJudge:
    """Tells the evolutionary search what strings cost, as multiples of the op-level placement in the same run.

    ``considered`` are the regions that were measured for it. ``run`` and ``compare`` raise KernelRejectedError and
    PlanDroppedError where the op-level placement fails, or the champion: then the search has to be repeated.
    """

    def __init__(self, bench: Bench, mix: Placed, encoding: Encoding) -> None:
        """``encoding`` is made from the placement of ``mix``."""
        self.considered: dict[CandidateRequest, Considered] = {}
        self._encoding = encoding
        self._bench = bench
        self._referee = Referee(bench)
        self._field = field_of(bench)
        self._trials: dict[frozenset[tuple[tuple[int, ...], str]], Trial] = {}
        self._placements: dict[Offloaded, Placement] = {}
        self._base = mix

    def run(self, genome: Genome) -> Trial:
        """The trial of one string: a short run beside the op-level placement."""
        offloaded = self._encoding.decode(genome)
        if not offloaded.regions:
            return Trial(Cost(1.0), 0.0)
        regions = frozenset(offloaded.regions)
        if regions in self._trials:
            return replace(self._trials[regions], seconds=0.0)
        started = time.perf_counter()
        cost, reason = None, ""
        try:
            plan = self._plan(offloaded)
            cost = self._hopeless(plan.placement) or self._costs([self._base, plan], _SHORT)[plan]
        except RaceFailedError as error:
            reason = self._refused(error.failed)
        except CollageError as error:
            reason = str(error)
            log.info("graph level: %s", reason)
        trial = Trial(cost, self._seconds(offloaded, "", started), reason)
        self._trials[regions] = trial
        return trial

    def compare(self, challenger: Genome, champion: Genome) -> tuple[Trial, Trial]:
        """The trials of two strings in one long run, which the op-level placement is part of."""
        started = time.perf_counter()
        ours, theirs = self._encoding.decode(challenger), self._encoding.decode(champion)
        if ours.regions == theirs.regions:
            known = replace(self.run(champion), seconds=0.0)
            return known, known
        mine = self._plan(ours)
        plans = [self._base, mine]
        if theirs.regions:
            plans.append(self._plan(theirs))
        against = f" against {sorted(theirs.regions)}"
        try:
            costs = self._costs(plans, _LONG)
        except RaceFailedError as error:
            if error.failed.plan in plans[2:]:
                raise
            reason = self._refused(error.failed)
            lost = Trial(None, self._seconds(ours, against, started), reason)
            return lost, replace(self.run(champion), seconds=0.0)
        return Trial(costs[mine], self._seconds(ours, against, started)), Trial(
            costs[plans[-1 if theirs.regions else 0]], 0.0
        )

    def placement(self, genome: Genome) -> Placement:
        """The placement of a string, in storages that suit the regions.

        Raises CollageError when an engine does not take its region, or when a storage cannot be converted.
        """
        return self._placement(self._encoding.decode(genome))

    def _placement(self, offloaded: Offloaded) -> Placement:
        if offloaded not in self._placements:
            self._placements[offloaded] = self._place(offloaded)
        return self._placements[offloaded]

    def _refused(self, failed: Failed) -> str:
        """Why a trial failed. It is raised again if the op level needs what failed."""
        if failed.plan == self._base:
            raise RaceFailedError(failed)
        if failed.kernel is not None and isinstance(failed.kernel.what, CandidateRequest):
            what = failed.kernel.what
            if failed.kernel in self._referee.executable(self._base).kernels:
                raise RaceFailedError(failed)
            outcome = self._bench.known.outcomes.get(what)
            if isinstance(outcome, Rejection):
                self._tell(CandidateRequest(what.nodes, what.backend), outcome)
        return failed.reason

    def _hopeless(self, placement: Placement) -> Cost | None:
        """The sum of the parts, if it is far above the op level's; otherwise None."""
        times = placement.predicted_us / self._base.placement.predicted_us
        return Cost(times, times * (_HOPELESS - 1)) if times > _HOPELESS else None

    def _plan(self, offloaded: Offloaded) -> Placed:
        return planned(self._bench, self._placement(offloaded))

    def _place(self, offloaded: Offloaded) -> Placement:
        """The regions, and the kernels of the op level around them in storages that suit their new neighbours."""
        bench = self._bench
        requests = [CandidateRequest(nodes, engine) for nodes, engine in offloaded.regions]
        outcomes = bench.measurer.measure(requests)
        chosen: list[Candidate] = []
        for request in requests:
            outcome = outcomes[request]
            if request not in bench.known.outcomes:
                floored = with_floor(outcome) if isinstance(outcome, Measurement) else outcome
                self._tell(request, floored)
            if isinstance(outcome, Rejection):
                reason = f"{outcome.kind.value}: {outcome.message}"
                raise CollageError(f"{request.backend} on {len(request.nodes)} operators: {reason}")
            assert isinstance(outcome, Measurement)  # nothing races here
            chosen.append(candidate_of(bench.model, request, outcome))
        same = {(c.nodes, c.backend, c.variant) for c in offloaded.kept}
        stay = {c.nodes for c in offloaded.kept}
        others = [
            c
            for c in self._field.candidates
            if c.nodes in stay and (c.nodes, c.backend, c.variant) not in same and self._usable(c)
        ]
        candidates = (*chosen, *offloaded.kept, *others)
        try:
            return place(bench, field=Field(candidates, self._field.transforms_us))
        except NoPlacementError as error:
            raise CollageError(f"no way to lay out the kernels around the regions: {error}") from error

    def _usable(self, candidate: Candidate) -> bool:
        """Whether the candidate was not rejected since the search began."""
        request = CandidateRequest(candidate.nodes, candidate.backend, candidate.variant)
        return not isinstance(self._bench.known.outcomes.get(request), Rejection)

    def _tell(self, request: CandidateRequest, outcome: Outcome) -> None:
        self.considered[request] = Considered(request, LABEL, outcome)

    def _costs(self, plans: Sequence[Placed], pace: Pace) -> dict[Placed, Cost]:
        """Times as multiples of the op level's. The noise is that of the distance to the fastest, which has none."""
        timings = self._referee.race(plans, pace, " level")
        unit, best = timings[self._base].median_us, min(each.median_us for each in timings.values())
        return {
            plan: Cost(t.median_us / unit, t.noise_us / unit if t.median_us > best else 0.0)
            for plan, t in timings.items()
            if isinstance(plan, Placed)
        }

    def _seconds(self, offloaded: Offloaded, against: str, started: float) -> float:
        """The seconds that the trial took when it was made, now or in an earlier compile."""
        keys = [
            self._bench.measurer.key(CandidateRequest(nodes, engine)) for nodes, engine in offloaded.regions
        ]
        text = f"{self._referee.executable(self._base).digest} {sorted(map(str, keys))}{against}"
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        return self._bench.database.remember(_TRIAL_S.at(key), partial(_elapsed, started))


def _elapsed(started: float) -> float:
    return round(time.perf_counter() - started, 3)
