"""Refine: the graph level (section 2.4.3), an evolutionary search for regions that engines should take over."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.state import Compilation, Context


@dataclass(frozen=True)
class Refine:
    """Searches for ``graph_level_s`` seconds in a compile at graph level. At op level it does nothing."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds the plans that were found, and events about the search.

        Raises KernelRejectedError and PlanDroppedError where the op-level placement fails.
        """
        budget_s = context.options.graph_level_s
        if budget_s is None or compilation.placed.mix is None:
            return compilation
        from collage.compiler.evolution import GraphLevel  # imports DEAP, which nothing else needs

        plans, events = GraphLevel(context, compilation).search(budget_s, context.options.seed)
        return replace(compilation, plans=(*compilation.plans, *plans)).told(*events)
