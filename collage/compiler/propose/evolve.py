"""The graph level (section 2.4.3): what else an engine should take over, found by running whole networks.

The op level adds up kernels that were timed alone. Such a sum does not show what an engine gains from having more of
the network. So an evolutionary search (`collage.search.evolution`) makes proposals, and each is built and run beside
the op-level placement, unless its parts alone take far too long. Regions are measured in the worker first, so that one
which crashes, hangs or is wrong costs only itself. Every trial is kept in the database with the seconds it took. So the
same search on the same database makes the same choices, and no measurement.
"""

from __future__ import annotations

import random
from collections.abc import Generator

from collage.backends.base import VIEW
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.events import Evolved
from collage.compiler.placing import field_of
from collage.compiler.plan import Placed, Plan
from collage.compiler.propose.mixes import mix_of, planned
from collage.compiler.propose.offload_judge import OffloadJudge
from collage.compiler.verdict import Verdict
from collage.core.deadline import BudgetOverError
from collage.core.progress import Progress
from collage.frontend.subgraph import Subgraph
from collage.measure_db.results import Rejection
from collage.report.report import GraphLevelReport
from collage.search.candidate import Candidate
from collage.search.evolution import Cost, EvolutionResult, SearchLimits, State
from collage.search.evolution import evolve as search
from collage.search.offload import Encoding, Genome, encode

_ABOUT_AS_FAST = 1.1
"""An engine is about as fast as the op level on a part when it takes at most this many times as long."""


def evolve(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """Search for so many seconds of trials as the options say, and run the best placement that was found.

    Ctrl-C, or the end of the time for the whole compile, ends the search with the best so far, which is run, and is
    raised again then.
    """
    mix, budget_s = mix_of(best), bench.task.options.graph_level_s
    if mix is None or budget_s is None:
        return
    level = _GraphLevel(bench, best, bench.known.timed(mix))
    found = level.search(budget_s, bench.task.options.seed)
    if found is None:
        return
    champion, stopped = found
    if stopped is not None and isinstance(stopped, BudgetOverError):
        raise stopped
    if champion is not None:
        yield champion
    if stopped is not None:
        raise stopped


class _GraphLevel:
    """The search of one model."""

    def __init__(self, bench: Bench, best: Best, mix: Placed) -> None:
        self._bench, self._best = bench, best
        self._candidates_ = field_of(bench).candidates
        known = bench.known
        offered = [
            o.request for o in known.offers if not isinstance(known.outcomes.get(o.request), Rejection)
        ]
        able = {
            engine: {node for request in offered if request.backend == engine for node in request.nodes}
            for engine in sorted(bench.task.engines)
        }
        graph = bench.model.graph
        self.encoding: Encoding = encode(graph, mix.placement, able, self._kind, {VIEW})
        self._judge = OffloadJudge(bench, mix, self.encoding)

    def search(
        self, budget_s: float, seed: int
    ) -> tuple[Plan | None, KeyboardInterrupt | BudgetOverError | None] | None:
        """The plan of the best string, unless that is the op level's, and what has stopped the search."""

        def show(state: State) -> None:
            text = f"best {1 / state.cost.times:.3f}x the op level after {state.trials} placements; Ctrl-C keeps it"
            done = min(int(state.seconds), int(budget_s))
            self._best.show(Progress("evolve", done, max(int(budget_s), 1), text))

        encoding, judge, known = self.encoding, self._judge, self._bench.known
        if not encoding.genes:
            nothing = "nothing is left that an engine could take over"
            known.tell(Evolved(GraphLevelReport(0, 0, 0, 0.0, 1.0, nothing, ())))
            return None
        show(State(encoding.op_level, Cost(1.0)))
        found = search(
            encoding.genes, self._seeds(), judge, random.Random(seed), SearchLimits(budget_s), show
        )
        known.tell(*judge.considered.values(), Evolved(_report(found, len(encoding.genes))))
        champion = None
        if found.state.champion != encoding.op_level:
            champion = planned(self._bench, judge.placement(found.state.champion))
        return champion, found.stopped

    def _candidates(self, backend: str) -> list[Candidate]:
        return [c for c in self._candidates_ if c.backend == backend]

    def _kind(self, part: Candidate) -> str:
        return Subgraph(self._bench.model, part.nodes).digest

    def _seeds(self) -> list[Genome]:
        """The op level, and for each engine two strings: all that it can take, and what it is about as fast on."""
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
