"""EarlyPlacement: with a tolerance, the slowest kernels of the first mix are placed in reduced precision, too.

A compile that is stopped before everything is measured has something of its own to hand over then that spends the
tolerance. And what is found out about errors tells what measuring gains from then on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from collage.compiler.beyond import beyond
from collage.compiler.events import Bounded
from collage.compiler.passes.within import CHECKED, Within
from collage.compiler.plan import Plan
from collage.compiler.state import Compilation, Context, Pass

log = logging.getLogger(__name__)

LABEL = "early mix in reduced precision"


@dataclass(frozen=True)
class EarlyPlacement:
    """Measures what could take the place of the slowest kernels, searches, and keeps the fastest plan that it finds.

    ``streams`` may add a plan whose launches run side by side. The exact mix stays as it is: candidates that compute in
    the model's own dtypes race against such ones only.
    """

    measure: Pass
    search: Within
    streams: Pass | None = None

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds outcomes, ``errors``, and an early plan where a placement of reduced precision is within the tolerance.

        Raises as the search does.
        """
        if not any(offer.request.variant.precision for offer in compilation.offers):
            return compilation
        measured = self.measure(context, compilation)
        found = self.search.beside(context, measured)
        known = replace(
            compilation,
            outcomes=measured.outcomes,
            offers=found.offers,
            errors=found.errors,
            calibration=replace(compilation.calibration, corrections=found.calibration.corrections),
        )
        if found.budget is None:
            return known
        reduced = [
            plan
            for plan in found.plans
            if plan.label in CHECKED and any(c.variant.precision for c in plan.placement.candidates)
        ]
        if not reduced:
            return known
        best = min(
            [*reduced, *self._side_by_side(context, found)], key=lambda plan: plan.placement.predicted_us
        )
        (*_, bounded) = (event for event in found.log if isinstance(event, Bounded))
        return replace(known, early=(*known.early, replace(best, label=LABEL))).told(bounded)

    def _side_by_side(self, context: Context, found: Compilation) -> list[Plan]:
        """The plan that ``streams`` makes of the placement, where it is within the tolerance, too."""
        if self.streams is None:
            return []
        bench = context.workbench(found)
        kept = []
        for plan in self.streams(context, replace(found, plans=())).plans:
            complaint = beyond(context, bench, bench.assembler.assemble(plan, found.tunings))
            if complaint:
                log.info("side by side: %s", complaint)
            else:
                kept.append(plan)
        return kept
