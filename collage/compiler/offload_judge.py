"""The judge of the graph level: it builds and runs the network that a string of digits stands for, and remembers it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from collage.compiler.cheapest import cheapest
from collage.compiler.events import Considered
from collage.compiler.executable import Executable
from collage.compiler.plan import Plan
from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from collage.compiler.plan_runs import Race
from collage.compiler.state import Compilation, Context
from collage.core.progress import Progress
from collage.errors import CollageError, NoPlacementError
from collage.measure.timing.effort import FULL
from collage.measure.timing.interleave import FEWEST, SURE
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.keys import Fact, as_number
from collage.measure_db.results import Measurement, Outcome, Rejection, Timing
from collage.search.candidate import Candidate
from collage.search.candidates import candidate_of, with_floor
from collage.search.evolution import Cost, Trial
from collage.search.offload import Encoding, Genome, Offloaded
from collage.search.placement import Placement

log = logging.getLogger(__name__)

LABEL = "graph level"
_BASE = "op level"
_CHALLENGER = "rival"

_ABOUT = f"{LABEL}, "
_SHORT = Race(replace(FULL, rounds=12, compare_s=5.0), FEWEST, FEWEST, about=_ABOUT)
_LONG = Race(replace(FULL, rounds=30, compare_s=8.0), SURE, SURE, mark=" again", about=_ABOUT)
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

    def __init__(self, context: Context, compilation: Compilation, encoding: Encoding) -> None:
        """``compilation`` has a mix, and ``encoding`` is made from it."""
        mix = compilation.placed.mix
        assert mix is not None
        self.considered: dict[CandidateRequest, Considered] = {}
        self._encoding = encoding
        self._context = context
        self._compilation = compilation
        self._bench = context.workbench(compilation)
        self._outcomes = dict(compilation.outcomes)
        self._trials: dict[frozenset[tuple[tuple[int, ...], str]], Trial] = {}
        self._placements: dict[Offloaded, Placement] = {}
        self._base = self._bench.assembler.assemble(Plan(_BASE, mix, exclusive=False), compilation.tunings)

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
            executable = self._executable(offloaded)
            cost = self._hopeless(executable.plan.placement) or self._measured(executable)
        except (KernelRejectedError, PlanDroppedError) as error:
            reason = self._refused(error)
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
        executables = [self._base, self._executable(ours)]
        if theirs.regions:
            executables.append(self._executable(theirs, LABEL))
        against = f" against {sorted(theirs.regions)}"
        try:
            timings = self._timings(executables, _LONG)
        except (KernelRejectedError, PlanDroppedError) as error:
            reason = self._refused(error, executables[2:])
            lost = Trial(None, self._seconds(ours, against, started), reason)
            return lost, replace(self.run(champion), seconds=0.0)
        costs = _costs(timings)
        seconds = self._seconds(ours, against, started)
        return Trial(costs[_CHALLENGER], seconds), Trial(costs[LABEL if theirs.regions else _BASE], 0.0)

    def placement(self, genome: Genome) -> Placement:
        """The placement of a string, in storages that suit the regions.

        Raises CollageError when an engine does not take its region, or when a storage cannot be converted.
        """
        return self._placement(self._encoding.decode(genome))

    def _placement(self, offloaded: Offloaded) -> Placement:
        if offloaded not in self._placements:
            self._placements[offloaded] = self._place(offloaded)
        return self._placements[offloaded]

    def _refused(
        self, error: KernelRejectedError | PlanDroppedError, champion: Sequence[Executable] = ()
    ) -> str:
        """Why a trial failed. The error is raised again where the op level, or the champion, needs what failed."""
        needed = [self._base, *champion]
        if isinstance(error, PlanDroppedError):
            if error.label in {each.label for each in needed}:
                raise error
            return str(error)
        if any(error.kernel in each.kernels for each in needed):
            raise error
        self._outcomes.update(self._bench.measurer.known(self._outcomes))
        what = error.kernel.what
        if isinstance(what, CandidateRequest):
            self._tell(CandidateRequest(what.nodes, what.backend), error.rejection)
        return str(error)

    def _hopeless(self, placement: Placement) -> Cost | None:
        """The sum of the parts, where it is far above the op level's; otherwise None."""
        times = placement.predicted_us / self._base.predicted_us
        return Cost(times, times * (_HOPELESS - 1)) if times > _HOPELESS else None

    def _measured(self, executable: Executable) -> Cost:
        timings = self._timings([self._base, executable], _SHORT)
        return _costs(timings)[_CHALLENGER]

    def _executable(self, offloaded: Offloaded, label: str = _CHALLENGER) -> Executable:
        placement = self._placement(offloaded)
        alone = len(placement.candidates) == 1
        plan = Plan(label, placement, exclusive=alone)
        return self._bench.assembler.assemble(plan, self._compilation.tunings)

    def _place(self, offloaded: Offloaded) -> Placement:
        """The regions, and the kernels of the op level around them in storages that suit their new neighbours."""
        compilation = self._compilation
        requests = [CandidateRequest(nodes, engine) for nodes, engine in offloaded.regions]
        outcomes = self._bench.measurer.measure(requests, progress=_silent)
        chosen: list[Candidate] = []
        for request in requests:
            outcome = outcomes[request]
            if request not in compilation.outcomes:
                floored = with_floor(outcome) if isinstance(outcome, Measurement) else outcome
                self._tell(request, floored)
            if isinstance(outcome, Rejection):
                reason = f"{outcome.kind.value}: {outcome.message}"
                raise CollageError(f"{request.backend} on {len(request.nodes)} operators: {reason}")
            assert isinstance(outcome, Measurement)  # nothing races here
            chosen.append(candidate_of(compilation.imported, request, outcome))
        same = {(c.nodes, c.backend, c.variant) for c in offloaded.kept}
        stay = {c.nodes for c in offloaded.kept}
        others = [
            c
            for c in compilation.placed.candidates
            if c.nodes in stay and (c.nodes, c.backend, c.variant) not in same and self._usable(c)
        ]
        try:
            return cheapest(
                self._context,
                compilation,
                [*chosen, *offloaded.kept, *others],
                compilation.placed.transforms_us,
            )
        except NoPlacementError as error:
            raise CollageError(f"no way to lay out the kernels around the regions: {error}") from error

    def _usable(self, candidate: Candidate) -> bool:
        """Whether the candidate was not rejected since the search began."""
        request = CandidateRequest(candidate.nodes, candidate.backend, candidate.variant)
        return not candidate.outrun and not isinstance(self._outcomes.get(request), Rejection)

    def _tell(self, request: CandidateRequest, outcome: Outcome) -> None:
        self.considered[request] = Considered(request, LABEL, outcome)

    def _timings(self, executables: Sequence[Executable], race: Race) -> Mapping[str, Timing]:
        """Timings of one interleaved run by label, from the database or made now."""
        raced = self._bench.runs.race(executables, race)
        return {label: each.timing for label, each in raced.items()}

    def _seconds(self, offloaded: Offloaded, against: str, started: float) -> float:
        """The seconds that the trial took when it was made, now or in an earlier compile."""
        keys = [
            self._bench.measurer.key(CandidateRequest(nodes, engine)) for nodes, engine in offloaded.regions
        ]
        text = f"{self._base.digest} {sorted(map(str, keys))}{against}"
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        return self._context.database.remember(_TRIAL_S.at(key), partial(_elapsed, started))


def _elapsed(started: float) -> float:
    return round(time.perf_counter() - started, 3)


def _silent(_: Progress) -> None:
    """Regions that are measured for a trial show no progress of their own."""


def _costs(timings: Mapping[str, Timing]) -> dict[str, Cost]:
    """Times as multiples of the op level's. The noise is that of the distance to the fastest, which itself has none."""
    unit, best = timings[_BASE].median_us, min(each.median_us for each in timings.values())
    return {
        name: Cost(t.median_us / unit, t.noise_us / unit if t.median_us > best else 0.0)
        for name, t in timings.items()
    }
