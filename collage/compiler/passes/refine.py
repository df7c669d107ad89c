"""Refine: the graph level (section 2.4.3), an evolutionary search for regions that engines should take over."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.state import Compilation, Context


@dataclass(frozen=True)
class Refine:
    """Searches for ``graph_level_s`` seconds in a compile at graph level. At op level it does nothing.

    Where the compile is stopped meanwhile, the course has what was found.
    """

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds the plans that were found, and events about the search.

        Raises KernelRejectedError and PlanDroppedError where the op-level placement fails, and what has stopped it.
        """
        budget_s = context.options.graph_level_s
        if budget_s is None or compilation.placed.mix is None:
            return compilation
        from collage.compiler.evolution import GraphLevel  # imports DEAP, which nothing else needs

        plans, events, stopped = GraphLevel(context, compilation).search(budget_s, context.options.seed)
        refined = replace(compilation, plans=(*compilation.plans, *plans)).told(*events)
        if stopped is not None:
            context.course.reached(refined)
            raise stopped
        return refined
