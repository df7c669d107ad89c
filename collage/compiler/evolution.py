"""The graph level (section 2.4.3): what else an engine should take over, found by running whole networks.

The op level adds up kernels that were timed alone. What an engine gains from having more of the network in its hands
no sum shows. So an evolutionary search (`collage.search.evolution`) makes proposals, and each is built and run beside
the op-level placement, unless its parts alone take far too long. Regions are measured in the worker first: one that
crashes, hangs or is wrong costs itself only. Every trial is kept in the database with the seconds it took, so that the
same search on the same database makes the same choices and no measurement.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from collage.backends.base import VIEW
from collage.compiler.events import Considered, Event, Evolved
from collage.compiler.executable import Executable
from collage.compiler.passes.place import NOISE_MARGIN
from collage.compiler.plan import Plan, variants_of
from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from collage.compiler.plan_runs import Race
from collage.compiler.state import Compilation, Context
from collage.core.progress import Progress
from collage.errors import CollageError, NoPlacementError
from collage.frontend.subgraph import Subgraph
from collage.measure_db.effort import FULL
from collage.measure_db.interleave import FEWEST, SURE
from collage.measure_db.keys import Fact, as_number, write_number
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Outcome, Rejection
from collage.measure_db.timing import Timing
from collage.report.report import GraphLevelReport
from collage.search.candidate import Candidate
from collage.search.candidates import candidate_of, with_floor
from collage.search.dp import place
from collage.search.evolution import Cost, EvolutionResult, Limits, State, Trial, evolve
from collage.search.offload import Encoding, Genome, Offloaded, encode
from collage.search.placement import Placement

log = logging.getLogger(__name__)

LABEL = "graph level"
_BASE = "op level"
_CHALLENGER = "rival"

_ABOUT = f"{LABEL}, "
_SHORT = Race(replace(FULL, rounds=12, compare_s=5.0), FEWEST, FEWEST, about=_ABOUT)
_LONG = Race(replace(FULL, rounds=30, compare_s=8.0), SURE, SURE, mark=" again", about=_ABOUT)
_TRIAL_S: Fact[float] = Fact("trial_s", write_number, as_number)
_HOPELESS = 1.3
"""Times the op level's sum: proposals whose regions and kernels, measured alone, take longer are not run as a whole.
The sum is within a tenth of the whole, and building a network takes longer than measuring its regions."""
_ABOUT_AS_FAST = 1.1


class GraphLevel:
    """The search of one model, and its judge. Its methods raise KernelRejectedError for a kernel of the op level."""

    def __init__(self, context: Context, compilation: Compilation) -> None:
        """``compilation`` has a mix."""
        mix = compilation.placed.mix
        assert mix is not None
        self._context = context
        self._compilation = compilation
        self._bench = context.workbench(compilation)
        self._outcomes = dict(compilation.outcomes)
        self._considered: dict[Request, Considered] = {}
        self._trials: dict[frozenset[tuple[tuple[int, ...], str]], Trial] = {}
        self._placements: dict[Offloaded, Placement] = {}
        able = {
            engine: {n for c in self._candidates(engine) for n in c.nodes}
            for engine in sorted(context.engines)
        }
        self.encoding: Encoding = encode(compilation.imported.graph, mix, able, self._kind, {VIEW})
        self._base = self._bench.assembler.assemble(Plan(_BASE, mix, exclusive=False), compilation.tunings)

    def search(self, budget_s: float, seed: int) -> tuple[list[Plan], list[Event]]:
        """The best placement found in ``budget_s`` seconds of trials, as plans, and events that tell how it went.

        There are no plans where the op level is not bettered beyond the noise. Ctrl-C ends the search with the best so
        far.
        """

        def show(state: State) -> None:
            text = f"best {1 / state.cost.times:.3f}x the op level after {state.trials} placements; Ctrl-C keeps it"
            done = min(int(state.seconds), int(budget_s))
            self._context.progress(Progress("evolve", done, max(int(budget_s), 1), text))

        encoding = self.encoding
        if not encoding.genes:
            nothing = "nothing is left that an engine could take over"
            return [], [Evolved(GraphLevelReport(0, 0, 0, 0.0, 1.0, nothing, ()))]
        show(State(encoding.op_level, Cost(1.0)))
        found = evolve(encoding.genes, self._seeds(), self, random.Random(seed), Limits(budget_s), show)
        if found.interrupted:
            log.warning("the graph-level search was interrupted; going on with the best placement it found")
        plans = []
        if found.state.champion != encoding.op_level:
            placement = self._placements[encoding.decode(found.state.champion)]
            plans = variants_of(LABEL, placement, self._context.backends)
        return plans, [*self._considered.values(), Evolved(_report(found, len(encoding.genes)))]

    def run(self, genome: Genome) -> Trial:
        """The network with the string's regions beside the op-level placement."""
        offloaded = self.encoding.decode(genome)
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

    def _refused(
        self, error: KernelRejectedError | PlanDroppedError, champion: Sequence[Executable] = ()
    ) -> str:
        """Why a trial failed. What the op level, or the champion, fails at is raised: the search has to be repeated."""
        needed = [self._base, *champion]
        if isinstance(error, PlanDroppedError):
            if error.label in {each.label for each in needed}:
                raise error
            return str(error)
        if any(error.kernel in each.kernels for each in needed):
            raise error
        self._outcomes.update(self._bench.measurer.known(self._outcomes))
        what = error.kernel.what
        if isinstance(what, Request):
            self._tell(Request(what.nodes, what.backend), error.rejection)
        return str(error)

    def _hopeless(self, placement: Placement) -> Cost | None:
        """What the parts add up to, where that is far too much."""
        times = placement.predicted_us / self._base.predicted_us
        return Cost(times, times * (_HOPELESS - 1)) if times > _HOPELESS else None

    def _measured(self, executable: Executable) -> Cost:
        timings = self._timings([self._base, executable], _SHORT)
        return _costs(timings)[_CHALLENGER]

    def compare(self, challenger: Genome, champion: Genome) -> tuple[Trial, Trial]:
        """Both in one long run, with the op-level placement as the measure of both."""
        started = time.perf_counter()
        ours, theirs = self.encoding.decode(challenger), self.encoding.decode(champion)
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
            return Trial(None, self._seconds(ours, against, started), reason), replace(
                self.run(champion), seconds=0.0
            )
        costs = _costs(timings)
        seconds = self._seconds(ours, against, started)
        return Trial(costs[_CHALLENGER], seconds), Trial(costs[LABEL if theirs.regions else _BASE], 0.0)

    def _candidates(self, backend: str) -> list[Candidate]:
        return [c for c in self._compilation.placed.candidates if c.backend == backend]

    def _kind(self, part: Candidate) -> str:
        return Subgraph(self._compilation.imported, part.nodes).digest

    def _seeds(self) -> list[Genome]:
        """The op level; each engine with all that it can take, and with what it does about as fast alone."""
        encoding = self.encoding
        seeds = [encoding.op_level, *(encoding.all_on(engine) for engine in encoding.engines)]
        for digit, engine in enumerate(encoding.engines, start=1):
            alone = {c.nodes: c.cost_us for c in self._candidates(engine)}
            near = [
                all(
                    part.nodes in alone and alone[part.nodes] <= _ABOUT_AS_FAST * part.cost_us
                    for part in (encoding.parts[index] for index in gene.parts)
                )
                for gene in encoding.genes
            ]
            seeds.append(
                tuple(
                    digit if n and digit in g.choices else 0
                    for n, g in zip(near, encoding.genes, strict=True)
                )
            )
        return list(dict.fromkeys(seeds))

    def _executable(self, offloaded: Offloaded, label: str = _CHALLENGER) -> Executable:
        if offloaded not in self._placements:
            self._placements[offloaded] = self._place(offloaded)
        placement = self._placements[offloaded]
        alone = len(placement.candidates) == 1
        plan = Plan(label, placement, exclusive=alone)
        return self._bench.assembler.assemble(plan, self._compilation.tunings)

    def _place(self, offloaded: Offloaded) -> Placement:
        """The regions, and around them the kernels of the op level, in layouts that suit their new neighbours.

        Raises CollageError when an engine does not take its region, or a layout cannot be converted.
        """
        compilation = self._compilation
        requests = [Request(nodes, engine) for nodes, engine in offloaded.regions]
        outcomes = self._bench.measurer.measure(requests, progress=_silent)
        chosen: list[Candidate] = []
        for request in requests:
            outcome = outcomes[request]
            if request not in compilation.outcomes:
                floored = with_floor(outcome) if isinstance(outcome, Measurement) else outcome
                self._tell(request, floored)
            if not isinstance(outcome, Measurement):
                reason = f"{outcome.kind.value}: {outcome.message}"
                raise CollageError(f"{request.backend} on {len(request.nodes)} operators: {reason}")
            chosen.append(candidate_of(compilation.imported, request, outcome))
        same = {(c.nodes, c.backend, c.variant) for c in offloaded.kept}
        stay = {c.nodes for c in offloaded.kept}
        others = [
            c
            for c in compilation.placed.candidates
            if c.nodes in stay and (c.nodes, c.backend, c.variant) not in same and self._usable(c)
        ]
        try:
            return place(
                compilation.imported.graph,
                [*chosen, *offloaded.kept, *others],
                compilation.epsilon_us,
                margin=NOISE_MARGIN,
                transforms_us=compilation.placed.transforms_us,
            )
        except NoPlacementError as error:
            raise CollageError(f"no way to lay out the kernels around the regions: {error}") from error

    def _usable(self, candidate: Candidate) -> bool:
        """Whether nothing came up against it since."""
        request = Request(candidate.nodes, candidate.backend, candidate.variant)
        return not isinstance(self._outcomes.get(request), Rejection)

    def _tell(self, request: Request, outcome: Outcome) -> None:
        self._considered[request] = Considered(request, LABEL, outcome)

    def _timings(self, executables: Sequence[Executable], race: Race) -> Mapping[str, Timing]:
        """Of one interleaved run, from the database or made now."""
        raced = self._bench.runs.race(executables, race)
        return {label: each.timing for label, each in raced.items()}

    def _seconds(self, offloaded: Offloaded, against: str, started: float) -> float:
        """What the trial took when it was made, which is now if nobody knows of it."""
        measurer, database = self._bench.measurer, self._context.database
        keys = [measurer.key(Request(nodes, engine)) for nodes, engine in offloaded.regions]
        text = f"{self._base.digest} {sorted(map(str, keys))}{against}"
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        return database.remember(_TRIAL_S.at(key), partial(_elapsed, started))


def _elapsed(started: float) -> float:
    return round(time.perf_counter() - started, 3)


def _silent(_: Progress) -> None:
    """Regions that are tried show no progress of their own."""


def _costs(timings: Mapping[str, Timing]) -> dict[str, Cost]:
    """In multiples of the op level. The noise is that of the way to the best one, which itself has none."""
    unit, best = timings[_BASE].median_us, min(each.median_us for each in timings.values())
    return {
        name: Cost(t.median_us / unit, t.noise_us / unit if t.median_us > best else 0.0)
        for name, t in timings.items()
    }


def _report(found: EvolutionResult, genes: int) -> GraphLevelReport:
    state = found.state
    history = tuple((round(seconds, 3), round(times, 4)) for seconds, times in state.history)
    return GraphLevelReport(
        genes,
        state.trials,
        state.generation,
        round(state.seconds, 3),
        round(state.cost.times, 4),
        found.ended,
        history,
    )
