"""The graph level (section 2.4.3): what else an engine should take over, found by running whole networks.

The op level adds up kernels that were timed alone. Such a sum does not show what an engine gains from having more of
the network. So an evolutionary search (`collage.search.evolution`) makes proposals, and each is built and run beside
the op-level placement, unless its parts alone take far too long. Regions are measured in the worker first, so that one
which crashes, hangs or is wrong costs only itself.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Generator, Sequence
from dataclasses import replace

from collage.backends.base import VIEW
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.placing import Field, field_of, place
from collage.compiler.plan import Failed, Placed, Plan, RaceFailedError, Verdict
from collage.compiler.propose.mixes import mix_of, planned
from collage.compiler.record import GRAPH_LEVEL
from collage.compiler.referee import Referee
from collage.core.deadline import BudgetOverError
from collage.core.progress import Progress
from collage.errors import CollageError, NoPlacementError
from collage.frontend.subgraph import Subgraph
from collage.measure.timing.interleave import FEWEST, SURE, Pace
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Rejection
from collage.report.report import GraphLevelReport
from collage.search.candidate import Candidate
from collage.search.candidates import Offer, candidate_of
from collage.search.evolution import Cost, EvolutionResult, SearchLimits, State, Trial
from collage.search.evolution import evolve as search
from collage.search.offload import Encoding, Genome, Offloaded, encode

log = logging.getLogger(__name__)

_SHORT = Pace(rounds=8, least=FEWEST, limit_s=3.0)
_LONG = Pace(rounds=30, least=SURE, limit_s=6.0)
_HOPELESS = 1.3
"""A factor on the sum of the op level. If the regions and kernels of a proposal, measured alone, take longer than this,
the network is not run. The sum is within a tenth of the whole, and it takes longer to build a network than to measure
its regions."""


def evolve(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """Search for so many seconds of trials as the options say, and run the best placement that was found.

    After Ctrl-C the best one so far is run, and then KeyboardInterrupt is raised. The end of the compile's time is
    raised at once.
    """
    mix, budget_s = mix_of(best), bench.task.options.graph_level_s
    if mix is None or budget_s is None:
        return
    field, mix = field_of(bench), bench.known.timed(mix)
    encoding = _encoding(bench, mix)
    if not encoding.genes:
        nothing = "nothing is left that an engine could take over"
        bench.known.graph_level = GraphLevelReport(0, 0, 0, 0.0, 1.0, nothing, ())
        return

    def show(state: State) -> None:
        text = f"best {1 / state.cost.times:.3f}x the op level after {state.trials} placements; Ctrl-C keeps it"
        best.show(Progress("evolve", min(int(state.seconds), int(budget_s)), max(int(budget_s), 1), text))

    show(State(encoding.op_level, Cost(1.0)))
    judge, rng = OffloadJudge(bench, mix, encoding, field), random.Random(bench.task.options.seed)
    found = search(encoding.genes, encoding.seeds(field.candidates), judge, rng, SearchLimits(budget_s), show)
    bench.known.graph_level = _report(found, len(encoding.genes))
    if isinstance(found.stopped, BudgetOverError):
        raise found.stopped
    if found.state.champion != encoding.op_level:
        yield judge.plan(encoding.decode(found.state.champion))
    if found.stopped is not None:
        raise found.stopped


def _encoding(bench: Bench, mix: Placed) -> Encoding:
    """The strings of digits for the mix, whose parts each engine can take as far as its offers were not rejected."""
    known, model = bench.known, bench.model
    offered = [o.request for o in known.offers if not isinstance(known.outcomes.get(o.request), Rejection)]
    able = {
        engine: {node for request in offered if request.backend == engine for node in request.nodes}
        for engine in sorted(bench.task.engines)
    }
    kind_of = lambda part: Subgraph(model, part.nodes).digest  # noqa: E731
    return encode(model.graph, mix.placement, able, kind_of, {VIEW})


def _report(found: EvolutionResult, genes: int) -> GraphLevelReport:
    state = found.state
    history = tuple((round(seconds, 3), round(times, 4)) for seconds, times in state.history)
    seconds, times = round(state.seconds, 3), round(state.cost.times, 4)
    return GraphLevelReport(genes, state.trials, state.generation, seconds, times, found.ended, history)


class OffloadJudge:
    """Tells the evolutionary search what strings cost, as multiples of the op-level placement in the same run.

    ``run`` and ``compare`` raise RaceFailedError if the op-level placement fails, or the champion.
    """

    def __init__(self, bench: Bench, mix: Placed, encoding: Encoding, field: Field) -> None:
        """``encoding`` is made from the placement of ``mix``, and ``field`` has the candidates at the op level."""
        self._bench = bench
        self._base = mix
        self._encoding = encoding
        self._field = field
        self._referee = Referee(bench)
        self._trials: dict[Offloaded, Trial] = {}
        self._plans: dict[Offloaded, Placed] = {}

    def run(self, genome: Genome) -> Trial:
        """The trial of one string: a short run beside the op-level placement."""
        offloaded = self._encoding.decode(genome)
        if not offloaded.regions:
            return Trial(Cost(1.0), 0.0)
        if offloaded in self._trials:
            return replace(self._trials[offloaded], seconds=0.0)
        started = time.perf_counter()
        cost, reason = None, ""
        try:
            plan = self.plan(offloaded)
            times = plan.placement.predicted_us / self._base.placement.predicted_us
            if times > _HOPELESS:
                cost = Cost(times, times * (_HOPELESS - 1))
            else:
                cost = self._costs([self._base, plan], _SHORT)[plan]
        except RaceFailedError as error:
            reason = self._refused(error.failed)
        except CollageError as error:
            reason = str(error)
        if reason:
            log.info("graph level: %s", reason)
        self._trials[offloaded] = trial = Trial(cost, time.perf_counter() - started, reason)
        return trial

    def compare(self, challenger: Genome, champion: Genome) -> tuple[Trial, Trial]:
        """The trials of two strings in one long run, which the op-level placement is part of."""
        started = time.perf_counter()
        ours, theirs = self._encoding.decode(challenger), self._encoding.decode(champion)
        before = replace(self.run(champion), seconds=0.0)
        if ours.regions == theirs.regions:
            return before, before
        mine = self.plan(ours)
        other = self.plan(theirs) if theirs.regions else self._base
        try:
            costs = self._costs([*dict.fromkeys((self._base, mine, other))], _LONG)
        except RaceFailedError as error:
            if error.failed.plan == other:
                raise
            return Trial(None, time.perf_counter() - started, self._refused(error.failed)), before
        return Trial(costs[mine], time.perf_counter() - started), Trial(costs[other], 0.0)

    def plan(self, offloaded: Offloaded) -> Placed:
        """The regions, and the kernels of the op level around them in storages that suit their new neighbours.

        Raises CollageError if an engine does not take its region, or if a storage cannot be converted.
        """
        if offloaded in self._plans:
            return self._plans[offloaded]
        bench, known = self._bench, self._bench.known
        requests = [CandidateRequest(nodes, engine) for nodes, engine in offloaded.regions]
        known.offer(Offer(request, GRAPH_LEVEL) for request in requests)
        known.outcomes.update(bench.measurer.measure(requests))
        chosen: list[Candidate] = []
        for request in requests:
            outcome = known.outcomes[request]
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
            if c.nodes in stay
            and (c.nodes, c.backend, c.variant) not in same
            and not isinstance(known.outcomes.get(CandidateRequest(c.nodes, c.backend, c.variant)), Rejection)
        ]
        field = Field((*chosen, *offloaded.kept, *others), self._field.transforms_us)
        try:
            plan = planned(bench, place(bench, field=field))
        except NoPlacementError as error:
            raise CollageError(f"no way to lay out the kernels around the regions: {error}") from error
        self._plans[offloaded] = plan
        return plan

    def _refused(self, failed: Failed) -> str:
        """Why a trial failed. It is raised again if the op level needs what failed."""
        if self._base in self._referee.sharing([self._base], failed):
            raise RaceFailedError(failed)
        return failed.reason

    def _costs(self, plans: Sequence[Placed], pace: Pace) -> dict[Placed, Cost]:
        """Times as multiples of the op level's. The noise is that of the distance to the fastest, which has none."""
        timings = self._referee.race(plans, pace, " level")
        unit, best = timings[self._base].median_us, min(each.median_us for each in timings.values())
        return {
            plan: Cost(t.median_us / unit, t.noise_us / unit if t.median_us > best else 0.0)
            for plan, t in timings.items()
            if isinstance(plan, Placed)
        }
