"""EarlyPlacement: with a tolerance, what was measured first is placed in reduced precision, too.

A compile that is stopped before everything is measured has something of its own to hand over then that spends the
tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.events import Bounded
from collage.compiler.passes.within import CHECKED, Within
from collage.compiler.state import Compilation, Context

LABEL = "early mix in reduced precision"


@dataclass(frozen=True)
class EarlyPlacement:
    """Searches by what was measured so far, where the compile has a budget, and keeps the fastest plan that it finds.

    Everything else stays as it was: candidates that compute in the model's own dtypes race against such ones only.
    """

    search: Within

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds an early plan where a placement of reduced precision is within the tolerance. Raises as the search."""
        if not context.options.tolerance or context.options.budget_s is None:
            return compilation
        found = self.search(context, compilation)
        if found.budget is None:
            return compilation
        reduced = [
            plan
            for plan in found.plans
            if plan.label in CHECKED and any(c.variant.precision for c in plan.placement.candidates)
        ]
        if not reduced:
            return compilation
        best = min(reduced, key=lambda plan: plan.placement.predicted_us)
        (*_, bounded) = (event for event in found.log if isinstance(event, Bounded))
        kept = replace(compilation, early=(*compilation.early, replace(best, label=LABEL)))
        return kept.told(bounded)
