"""EarlyEngines: with a tolerance, engines in their own reduced precisions can be handed over early, too.

An engine in bfloat16 takes no search, and is often twice as fast as the same engine in float32. So it is measured as
soon as the samples can be run, and stays beside the first module until the compile ends.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from collage.compiler.beyond import within_tolerance
from collage.compiler.events import Considered
from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from collage.compiler.state import Compilation, Context
from collage.compiler.whole_plans import whole_plan, whole_requests
from collage.core.progress import Progress
from collage.graph.storage import BF16
from collage.measure_db.results import Measurement
from collage.search.candidates import candidate_of
from collage.search.errors import ErrorModel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EarlyEngines:
    """Measures the engines on the original model in bfloat16, with their usual settings, and their errors on samples.

    Later passes measure nothing of this again.
    """

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds early plans of the engines that are within the tolerance."""
        if not context.options.tolerance or not compilation.imported.graph.nodes:
            return compilation
        measurer = context.workbench(compilation).measurer
        build = replace(context.build, precisions=context.build.precisions & {BF16})
        asked = [
            request
            for request in whole_requests(context, compilation, build)
            if request.variant.precision and not request.profile
        ]
        if not asked or measurer.original is None:
            return compilation
        context.progress(Progress("errors", 0, 1))
        errors = ErrorModel()
        outcomes = measurer.measure(asked)
        found = [
            whole_plan(
                context, compilation, candidate_of(compilation.imported, request, outcome, errors=errors)
            )
            for request, outcome in outcomes.items()
            if isinstance(outcome, Measurement)
        ]
        plans = [each for each in found if each is not None]
        try:
            plans, notes = within_tolerance(context, compilation, plans)
        except (KernelRejectedError, PlanDroppedError) as error:
            log.info("engines in reduced precision: %s", error)
            return compilation
        first = None if compilation.first is None else compilation.first.timing
        for plan in plans:
            us = plan.placement.predicted_us
            if first is not None and us < first.median_us:
                context.course.improved(plan.label, us, (plan.label, us))
        told = [Considered(request, "whole model", outcome) for request, outcome in outcomes.items()]
        return replace(compilation, early=(*compilation.early, *plans)).told(*told, *notes)
