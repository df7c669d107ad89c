"""Settle: what is known when a compile is stopped becomes a module, if it is faster than the first one.

Nothing is measured that the search would need: the placement is made of what is known. One short run compares it with
the best engine on the whole model, and the last check is the same as always.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from itertools import count

from collage.compiler.passes.place import placed_by_known
from collage.compiler.passes.select import Select
from collage.compiler.passes.within import FLOAT32
from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from collage.compiler.short_list import SHORT, short_list
from collage.compiler.state import Compilation, Context, Pass
from collage.core.progress import Progress
from collage.errors import NoPlacementError

log = logging.getLogger(__name__)


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
        if compilation.budget is not None and all(plan.label != FLOAT32 for plan in compilation.plans):
            # The search was stopped before any error was measured.
            compilation = replace(compilation, budget=None, proposal=None, plans=())
        context.progress(Progress("finish", 0, 1))
        for attempt in count():
            context.course.deadline.check()
            known = placed_by_known(context, compilation)
            plans = compilation.plans if attempt == 0 else ()
            known = replace(known, plans=tuple(short_list(context, known, plans, self.most_plans)))
            try:
                return _if_faster(compilation, self.select(context, known))
            except (KernelRejectedError, PlanDroppedError) as error:
                log.info("placing again: %s", error)
        raise AssertionError("the loop ends by returning or raising")


def _if_faster(before: Compilation, found: Compilation) -> Compilation:
    """What was found. Raises NoPlacementError where it was not compared with the first module, and is not faster."""
    timing = None if before.first is None else before.first.timing
    compared = any(plan.original for plan in found.plans)
    if timing is not None and not compared and found.result.measured_us >= timing.median_us:
        raise NoPlacementError("the placement is not faster than the first module")
    return found
