"""The graph level (section 2.4.3): what else an engine should take over, found by running whole networks.

The op level adds up kernels that were timed alone. Such a sum does not show what an engine gains from having more of
the network. So an evolutionary search (`collage.search.evolution`) makes proposals, and each is built and run beside
the op-level placement, unless its parts alone take far too long. Regions are measured in the worker first, so that one
which crashes, hangs or is wrong costs only itself. Every trial is kept in the database with the seconds it took. So the
same search on the same database makes the same choices, and no measurement.
"""

from __future__ import annotations

import random

from collage.backends.base import VIEW
from collage.compiler.events import Event, Evolved
from collage.compiler.offload_judge import LABEL, OffloadJudge
from collage.compiler.plan import Plan, variants_of
from collage.compiler.state import Compilation, Context
from collage.core.deadline import BudgetOverError
from collage.core.progress import Progress
from collage.frontend.subgraph import Subgraph
from collage.report.report import GraphLevelReport
from collage.search.candidate import Candidate
from collage.search.evolution import Cost, EvolutionResult, SearchLimits, State, evolve
from collage.search.offload import Encoding, Genome, encode

_ABOUT_AS_FAST = 1.1
"""An engine is about as fast as the op level on a part when it takes at most this many times as long."""


class GraphLevel:
    """The search of one model."""

    def __init__(self, context: Context, compilation: Compilation) -> None:
        """``compilation`` has a mix."""
        mix = compilation.placed.mix
        assert mix is not None
        self._context = context
        self._compilation = compilation
        able = {
            engine: {n for c in self._candidates(engine) for n in c.nodes}
            for engine in sorted(context.engines)
        }
        self.encoding: Encoding = encode(compilation.imported.graph, mix, able, self._kind, {VIEW})
        self._judge = OffloadJudge(context, compilation, self.encoding)

    def search(
        self, budget_s: float, seed: int
    ) -> tuple[list[Plan], list[Event], KeyboardInterrupt | BudgetOverError | None]:
        """Search for ``budget_s`` seconds of trials. Returns plans of the best placement, and events for the log.

        There are no plans where nothing is faster than the op level by more than the noise. Ctrl-C, or the end of the
        time for the whole compile, ends the search with the best so far, and is the last thing that is returned. Raises
        KernelRejectedError or PlanDroppedError where the op-level placement fails.
        """

        def show(state: State) -> None:
            text = f"best {1 / state.cost.times:.3f}x the op level after {state.trials} placements; Ctrl-C keeps it"
            done = min(int(state.seconds), int(budget_s))
            self._context.progress(Progress("evolve", done, max(int(budget_s), 1), text))

        encoding, judge = self.encoding, self._judge
        if not encoding.genes:
            nothing = "nothing is left that an engine could take over"
            return [], [Evolved(GraphLevelReport(0, 0, 0, 0.0, 1.0, nothing, ()))], None
        show(State(encoding.op_level, Cost(1.0)))
        found = evolve(
            encoding.genes, self._seeds(), judge, random.Random(seed), SearchLimits(budget_s), show
        )
        plans = []
        if found.state.champion != encoding.op_level:
            plans = variants_of(LABEL, judge.placement(found.state.champion), self._context.backends)
        events: list[Event] = [*judge.considered.values(), Evolved(_report(found, len(encoding.genes)))]
        return plans, events, found.stopped

    def _candidates(self, backend: str) -> list[Candidate]:
        return [c for c in self._compilation.placed.candidates if c.backend == backend]

    def _kind(self, part: Candidate) -> str:
        return Subgraph(self._compilation.imported, part.nodes).digest

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
