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
from dataclasses import dataclass, field, replace

from collage.backends.base import VIEW, Backend, BackendKind
from collage.compiler.assemble import Rival, rivals_of
from collage.compiler.finalist import Finalist, network_key
from collage.compiler.in_network import InNetwork
from collage.compiler.placing import NOISE_MARGIN, Placer, Placing
from collage.compiler.plan_runs import KernelRejectedError, PlanDroppedError
from collage.core.progress import Progress
from collage.errors import CollageError, NoPlacementError
from collage.frontend.subgraph import Subgraph
from collage.measure_db.database import NetworkKey
from collage.measure_db.effort import FULL, Effort
from collage.measure_db.interleave import FEWEST, SURE
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Rejection
from collage.measure_db.timing import Timing
from collage.report.report import CandidateReport, GraphLevelReport
from collage.search.candidate import Candidate
from collage.search.candidates import NOISE_FLOOR
from collage.search.dp import place
from collage.search.evolution import Cost, Found, Limits, State, Trial, evolve
from collage.search.offload import Encoding, Genome, Offloaded, encode
from collage.search.placement import Placement

log = logging.getLogger(__name__)

LABEL = "graph level"
_BASE = "op level"
_RIVAL = "rival"

_SHORT = replace(FULL, rounds=12, compare_s=5.0)
_LONG = replace(FULL, rounds=30, compare_s=8.0)
_HOPELESS = 1.3
"""Times the op level's sum: proposals whose regions and kernels, measured alone, take longer are not run as a whole.
The sum is within a tenth of the whole, and building a network takes longer than measuring its regions."""
_ABOUT_AS_FAST = 1.1


@dataclass
class GraphLevel:
    """The search of one model, and its judge. Its methods raise KernelRejectedError for a kernel of the op level."""

    network: InNetwork
    placer: Placer
    placing: Placing
    backends: Mapping[str, Backend]
    reports: list[CandidateReport] = field(default_factory=list)
    """Of the regions that were tried."""
    _trials: dict[frozenset[tuple[tuple[int, ...], str]], Trial] = field(default_factory=dict)
    _placements: dict[Offloaded, Placement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assembler, graph = self.network.assembler, self.network.assembler.model.graph
        assert self.placing.mix is not None
        engines = [n for n, b in sorted(self.backends.items()) if b.kind is BackendKind.ENGINE]
        able = {engine: {n for c in self._candidates(engine) for n in c.nodes} for engine in engines}
        self.encoding: Encoding = encode(graph, self.placing.mix, able, self._kind, {VIEW})
        self._base: Finalist = assembler.assemble(
            Rival(_BASE, self.placing.mix, exclusive=False), self.placer.tunings()
        )

    def search(self, budget_s: float, seed: int) -> tuple[list[Rival], GraphLevelReport]:
        """The best placement found in ``budget_s`` seconds of trials, as rivals for the last comparison.

        None where the op level is not bettered beyond the noise. Ctrl-C ends the search with the best so far.
        """

        def show(state: State) -> None:
            text = f"best {1 / state.cost.times:.3f}x the op level after {state.trials} placements; Ctrl-C keeps it"
            done = min(int(state.seconds), int(budget_s))
            self.network.progress(Progress("evolve", done, max(int(budget_s), 1), text))

        encoding = self.encoding
        if not encoding.genes:
            return [], GraphLevelReport(
                0, 0, 0, 0.0, 1.0, "nothing is left that an engine could take over", ()
            )
        show(State(encoding.op_level, Cost(1.0)))
        found = evolve(encoding.genes, self._seeds(), self, random.Random(seed), Limits(budget_s), show)
        if found.interrupted:
            log.warning("the graph-level search was interrupted; going on with the best placement it found")
        rivals = []
        if found.state.champion != encoding.op_level:
            placement = self._placements[encoding.decode(found.state.champion)]
            rivals = rivals_of(LABEL, placement, self.backends)
        return rivals, _report(found, len(encoding.genes))

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
            rival = self._finalist(offloaded)
            cost = self._hopeless(rival.placement) or self._measured(rival)
        except (KernelRejectedError, PlanDroppedError) as error:
            reason = self._refused(error)
        except CollageError as error:
            reason = str(error)
            log.info("graph level: %s", reason)
        trial = Trial(cost, self._seconds(offloaded, "", started), reason)
        self._trials[regions] = trial
        return trial

    def _refused(
        self, error: KernelRejectedError | PlanDroppedError, champion: Sequence[Finalist] = ()
    ) -> str:
        """Why a trial failed. What the op level, or the champion, fails at is raised: the search has to be repeated."""
        needed = [self._base, *champion]
        if isinstance(error, PlanDroppedError):
            if error.label in {each.label for each in needed}:
                raise error
            return str(error)
        if any(error.kernel in each.kernels for each in needed):
            raise error
        self.placer.refresh()
        what = error.kernel.what
        if isinstance(what, Request):
            self.reports[:] = [r for r in self.reports if (r.nodes, r.backend) != (what.nodes, what.backend)]
            self._tell(CandidateReport(what.nodes, what.backend, LABEL, reason=str(error)))
        return str(error)

    def _hopeless(self, placement: Placement) -> Cost | None:
        """What the parts add up to, where that is far too much."""
        times = placement.predicted_us / self._base.placement.predicted_us
        return Cost(times, times * (_HOPELESS - 1)) if times > _HOPELESS else None

    def _measured(self, rival: Finalist) -> Cost:
        timings = self._timings([self._base, rival], _SHORT)
        return _costs(timings)[_RIVAL]

    def compare(self, challenger: Genome, champion: Genome) -> tuple[Trial, Trial]:
        """Both in one long run, with the op-level placement as the measure of both."""
        started = time.perf_counter()
        ours, theirs = self.encoding.decode(challenger), self.encoding.decode(champion)
        if ours.regions == theirs.regions:
            known = replace(self.run(champion), seconds=0.0)
            return known, known
        finalists = [self._base, self._finalist(ours)]
        if theirs.regions:
            finalists.append(replace(self._finalist(theirs), label=LABEL))
        against = f" against {sorted(theirs.regions)}"
        try:
            timings = self._timings(finalists, _LONG, again=" again")
        except (KernelRejectedError, PlanDroppedError) as error:
            reason = self._refused(error, finalists[2:])
            return Trial(None, self._seconds(ours, against, started), reason), replace(
                self.run(champion), seconds=0.0
            )
        costs = _costs(timings)
        seconds = self._seconds(ours, against, started)
        return Trial(costs[_RIVAL], seconds), Trial(costs[LABEL if theirs.regions else _BASE], 0.0)

    def _candidates(self, backend: str) -> list[Candidate]:
        return [c for c in self.placing.found.candidates if c.backend == backend]

    def _kind(self, part: Candidate) -> str:
        return Subgraph(self.network.assembler.model, part.nodes).digest

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

    def _finalist(self, offloaded: Offloaded) -> Finalist:
        if offloaded not in self._placements:
            self._placements[offloaded] = self._place(offloaded)
        placement = self._placements[offloaded]
        alone = len(placement.candidates) == 1
        return self.network.assembler.assemble(
            Rival(_RIVAL, placement, exclusive=alone), self.placer.tunings()
        )

    def _place(self, offloaded: Offloaded) -> Placement:
        """The regions, and around them the kernels of the op level, in layouts that suit their new neighbours.

        Raises CollageError when an engine does not take its region, or a layout cannot be converted.
        """
        requests = [Request(nodes, engine) for nodes, engine in offloaded.regions]
        outcomes = self.placer.measurer.measure(requests, progress=lambda _: None)
        chosen: list[Candidate] = []
        for request in requests:
            outcome = outcomes[request]
            new = request not in self.placer.outcomes
            if not isinstance(outcome, Measurement):
                reason = f"{outcome.kind.value}: {outcome.message}"
                if new:
                    self._tell(CandidateReport(request.nodes, request.backend, LABEL, reason=reason))
                raise CollageError(f"{request.backend} on {len(request.nodes)} operators: {reason}")
            noise_us = max(outcome.noise_us, NOISE_FLOOR * outcome.median_us)
            chosen.append(
                Candidate(
                    request.nodes,
                    request.backend,
                    outcome.median_us,
                    noise_us,
                    finite_only=outcome.finite_only,
                )
            )
            if new:
                about = CandidateReport(request.nodes, request.backend, LABEL)
                about = replace(about, cost_us=outcome.median_us, noise_us=noise_us)
                self._tell(replace(about, finite_only=outcome.finite_only))
        same = {(c.nodes, c.backend, c.variant) for c in offloaded.kept}
        stay = {c.nodes for c in offloaded.kept}
        others = [
            c
            for c in self.placing.found.candidates
            if c.nodes in stay and (c.nodes, c.backend, c.variant) not in same and self._usable(c)
        ]
        try:
            return place(
                self.network.assembler.model.graph,
                [*chosen, *offloaded.kept, *others],
                self.network.epsilon_us,
                margin=NOISE_MARGIN,
                transforms_us=self.placing.transforms_us,
            )
        except NoPlacementError as error:
            raise CollageError(f"no way to lay out the kernels around the regions: {error}") from None

    def _usable(self, candidate: Candidate) -> bool:
        """Whether nothing came up against it since."""
        request = Request(candidate.nodes, candidate.backend, candidate.variant)
        return not isinstance(self.placer.outcomes.get(request), Rejection)

    def _tell(self, report: CandidateReport) -> None:
        if report not in self.reports:
            self.reports.append(report)

    def _timings(
        self, finalists: Sequence[Finalist], effort: Effort, again: str = ""
    ) -> Mapping[str, Timing]:
        """Of one interleaved run, from the database or made now."""
        database, assembler = self.network.runs.database, self.network.assembler
        keys: dict[str, NetworkKey] = {}
        for each in finalists:
            key = network_key(each, finalists, assembler.model, assembler.target)
            keys[each.label] = replace(key, placement=key.placement + again)
        known = {label: database.get_network(key) for label, key in keys.items()}
        found = {label: timing for label, timing in known.items() if timing is not None}
        if len(found) == len(finalists):
            return found
        few = SURE if again else FEWEST
        raced = self.network.runs.compare(finalists, effort, early=few, least=few)
        for label, found_now in raced.items():
            database.put_network(keys[label], found_now.timing, f"{assembler.model.name}: {LABEL}, {label}")
        return {label: each.timing for label, each in raced.items()}

    def _seconds(self, offloaded: Offloaded, against: str, started: float) -> float:
        """What the trial took when it was made, which is now if nobody knows of it."""
        keys = [self.placer.measurer.key(Request(nodes, engine)) for nodes, engine in offloaded.regions]
        text = f"{self._base.digest} {sorted(map(str, keys))}{against}"
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        known = self.network.runs.database.get_fact("trial_s", key)
        if isinstance(known, float):
            return known
        seconds = round(time.perf_counter() - started, 3)
        self.network.runs.database.put_fact("trial_s", key, seconds)
        return seconds


def _costs(timings: Mapping[str, Timing]) -> dict[str, Cost]:
    """In multiples of the op level. The noise is that of the way to the best one, which itself has none."""
    unit, best = timings[_BASE].median_us, min(each.median_us for each in timings.values())
    return {
        name: Cost(t.median_us / unit, t.noise_us / unit if t.median_us > best else 0.0)
        for name, t in timings.items()
    }


def _report(found: Found, genes: int) -> GraphLevelReport:
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
