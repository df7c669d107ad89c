"""From measured kernels to the best network: place, run, compare what is close; again when a kernel fails in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.backends.base import Backend
from collage.compiler.assemble import Assembler, Rival, find_rivals
from collage.compiler.final_check import FinalCheck
from collage.compiler.finalists import Verdict, choose
from collage.compiler.in_network import InNetwork
from collage.compiler.originals import measure_originals
from collage.compiler.placing import Placer, Placing
from collage.compiler.plan_runs import KernelRejectedError, PlanDroppedError, PlanRuns
from collage.compiler.streams import Streams
from collage.core.progress import Progress
from collage.errors import NoPlacementError
from collage.kernel.options import BuildOptions
from collage.kernel.target import Target
from collage.measure_db.measurer import Measurer
from collage.patterns.match import Match
from collage.report.report import CandidateReport, GraphLevelReport
from collage.search.candidates import CandidateSet

log = logging.getLogger(__name__)

_MOST_ATTEMPTS = 200
"""Each but the last rejects a kernel, or drops a plan."""


@dataclass(frozen=True)
class Decision:
    """The winner, all that was considered, and the seconds that the searches took without measuring."""

    verdict: Verdict
    found: CandidateSet
    graph_level: GraphLevelReport | None
    search_s: float


@dataclass(frozen=True)
class Decider:
    """One model with all that was measured of it; ``matches`` are what its backends may run.

    ``graph_level_s`` are the seconds of trials for the graph-level search, None for none; ``streams`` tells whether
    launches may run side by side.
    """

    measurer: Measurer
    backends: Mapping[str, Backend]
    build: BuildOptions
    target: Target
    assembler: Assembler
    runs: PlanRuns
    placer: Placer
    matches: Sequence[Match]
    check: Callable[[], FinalCheck]
    progress: Callable[[Progress], None]
    graph_level_s: float | None
    streams: bool
    seed: int

    def decide(self) -> Decision:
        """The best network whose numbers are right. Raises NoPlacementError."""
        for _ in range(_MOST_ATTEMPTS):
            self.placer.refresh()
            try:
                return self._attempt()
            except (KernelRejectedError, PlanDroppedError) as error:
                log.info("searching again: %s", error)
        raise NoPlacementError("too many kernels fail in the network; leave out their backend.")

    def _attempt(self) -> Decision:
        """Raises KernelRejectedError and PlanDroppedError where the search has to be repeated."""
        placer, epsilon_us = self.placer, self.placer.epsilon_us
        self.progress(Progress("place", 0, 1))
        network = InNetwork(self.assembler, self.runs, epsilon_us, self.progress)
        placing = network.settle(placer)
        originals = measure_originals(
            self.measurer, self.backends, self.build, epsilon_us, placing.found.candidates
        )
        rivals = find_rivals(self.measurer.model, placing, epsilon_us, self.backends)
        rivals = [r for r in rivals if r.label not in originals.beaten] + [*originals.rivals]
        rivals += [Rival(f"mix {n}", mix, exclusive=False) for n, mix in enumerate(network.close, start=2)]
        reports = [*originals.reports]
        graph_level = None
        if placing.mix is not None and self.graph_level_s is not None:
            handed_over, graph_level = self._graph_level(network, placing, reports, self.graph_level_s)
            rivals += handed_over
        if placing.mix is not None and self.target.threads > 1 and self.streams:
            alone = self.measurer.beside(1)
            streams = Streams(
                self.assembler,
                network,
                self.backends,
                self.matches,
                alone,
                placer.tunings(),
                self.build.exact,
            )
            side_by_side = streams.rival(placing.mix, self.target.threads)
            rivals += [side_by_side] if side_by_side is not None else []
            reports += streams.reports
        finalists = [self.assembler.assemble(rival, placer.tunings()) for rival in rivals]
        verdict = choose(finalists, self.runs, self.check, self.progress)
        verdict = replace(verdict, notes=(*self.runs.notes, *verdict.notes))
        found = replace(placing.found, reports=(*placing.found.reports, *reports))
        return Decision(verdict, found, graph_level, placing.search_s)

    def _graph_level(
        self, network: InNetwork, placing: Placing, reports: list[CandidateReport], budget_s: float
    ) -> tuple[list[Rival], GraphLevelReport]:
        from collage.compiler.graph_level import GraphLevel  # with DEAP, which nobody else needs

        level = GraphLevel(network, self.placer, placing, self.backends)
        handed_over, report = level.search(budget_s, self.seed)
        reports += level.reports
        return handed_over, report
