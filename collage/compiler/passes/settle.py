"""Settle: what is known when a compile is stopped becomes a module, if it is faster than the first one.

Nothing is measured that the search would need: the placement is made of what is known. One short run compares it with
the best engine on the whole model, and the last check is the same as always.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from collage.compiler.passes.place import placed_by_known
from collage.compiler.passes.select import Select
from collage.compiler.plan import Plan
from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from collage.compiler.plan_runs import Race
from collage.compiler.state import Compilation, Context, Pass
from collage.core.progress import Progress
from collage.errors import NoPlacementError
from collage.measure_db.effort import FULL
from collage.measure_db.interleave import FEWEST, SURE
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement
from collage.report.words import as_written
from collage.search.candidates import candidate_of
from collage.search.placement import finish

log = logging.getLogger(__name__)

SHORT = Race(replace(FULL, rounds=12, compare_s=3.0), FEWEST, SURE, noted=True, mark=" in short", shown=True)
"""The last comparison of a compile that is stopped."""


@dataclass(frozen=True)
class Settle:
    """Places the model with what is known, unless there are plans, and selects by ``select``.

    The engine of the first module is one of the plans. Where it is as fast as any, the first module stays the best one.
    """

    select: Pass = field(default_factory=lambda: Select(race=SHORT, except_baselines=True))
    most_plans: int = 3

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the selection. Raises NoPlacementError where nothing known is faster, and BudgetOverError."""
        if compilation.selected is not None:
            return compilation
        if compilation.model is None or not compilation.offers:
            raise NoPlacementError("it is not known yet how parts of the model run")
        context.progress(Progress("finish", 0, 1))
        for attempt in count():
            context.course.deadline.check()
            known = placed_by_known(context, compilation)
            plans = compilation.plans if attempt == 0 else ()
            known = replace(known, plans=tuple(self._plans(context, known, plans)))
            try:
                return _if_faster(compilation, self.select(context, known))
            except (KernelRejectedError, PlanDroppedError) as error:
                log.info("placing again: %s", error)
        raise AssertionError("the loop ends by returning or raising")

    def _plans(self, context: Context, compilation: Compilation, plans: Sequence[Plan]) -> list[Plan]:
        """The placement, or the first and the last ones of the plans that were found; and the best engine."""
        ours = [plan for plan in plans if not plan.original]
        if not ours:
            placement = compilation.placed.placement
            ours = [Plan("collage", placement, exclusive=len(placement.candidates) == 1)]
        kept = list(dict.fromkeys((ours[0], *ours[1 - self.most_plans :])))
        engines = [plan for plan in plans if plan.original] or self._first(context, compilation)
        return kept + sorted(engines, key=lambda plan: plan.placement.predicted_us)[:1]

    def _first(self, context: Context, compilation: Compilation) -> list[Plan]:
        """The first module as a plan, with the time that its trial has shown."""
        first, measurer = compilation.first, context.workbench(compilation).measurer
        if first is None or first.timing is None or measurer.original is None:
            return []
        graph, timing = compilation.imported.graph, first.timing
        request = Request(tuple(range(len(graph.nodes))), first.engine, original=True)
        outcome = Measurement(
            timing.median_us,
            timing.noise_us,
            timing.min_us,
            timing.repeats,
            first.trial.errors[first.engine][1],
            finite_only=first.engine in first.trial.finite_only,
        )
        candidate = candidate_of(compilation.imported, request, outcome)
        placement = finish(graph, [candidate], compilation.epsilon_us)
        return [Plan(f"{first.engine}, {as_written('')}", placement, exclusive=True, original=True)]


def _if_faster(before: Compilation, found: Compilation) -> Compilation:
    """What was found. Raises NoPlacementError where it was not compared with the first module, and is not faster."""
    timing = None if before.first is None else before.first.timing
    compared = any(plan.original for plan in found.plans)
    if timing is not None and not compared and found.result.measured_us >= timing.median_us:
        raise NoPlacementError("the placement is not faster than the first module")
    return found
