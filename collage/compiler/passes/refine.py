"""Refine: the graph level (section 2.4.3), an evolutionary search over what else engines should take over."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.state import Compilation, Context


@dataclass(frozen=True)
class Refine:
    """Searches where the compile is at graph level, for as many seconds as it was given."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds plans and how the search went. Raises KernelRejectedError and PlanDroppedError."""
        budget_s = context.options.graph_level_s
        if budget_s is None or compilation.placed.mix is None:
            return compilation
        from collage.compiler.evolution import GraphLevel  # with DEAP, which nobody else needs

        plans, events = GraphLevel(context, compilation).search(budget_s, context.options.seed)
        return replace(compilation, plans=(*compilation.plans, *plans)).told(*events)
