"""Settle: what is known when a compile is stopped becomes a module, if it is faster than the first one.

Nothing is measured that the search would need: the placement is made of what is known. One short run compares it with
the best engine on the whole model, and the last check is the same as always.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from itertools import count

from collage.compiler.by_known import placed_by_known
from collage.compiler.passes.gpu_streams import GpuStreams
from collage.compiler.passes.select import Select
from collage.compiler.plan import FLOAT32
from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from collage.compiler.short_list import SHORT, short_list, told_best, without_placement
from collage.compiler.state import Compilation, Context, Pass
from collage.core.progress import Progress
from collage.errors import NoPlacementError

log = logging.getLogger(__name__)

_GAIN = 0.1
"""The share that a placement may gain by what was measured since it was found. Measured on NASNet-A: 0.07."""
_WORTH = 0.03
"""The share that a placement has to gain to be compared when there is little time."""
_LONG = 0.2
"""The share of the time that is left which a comparison may take, before the last check and loading."""


@dataclass(frozen=True)
class Settle:
    """Places the model with what is known, unless there are plans, and selects by ``select``.

    The engine of the first module is one of the plans, and so are early plans of reduced precision. Where the engine is
    as fast as any, the first module stays the best one.
    """

    select: Pass = field(default_factory=lambda: Select(race=SHORT, except_baselines=True))
    most_plans: int = 3

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the selection. Raises NoPlacementError where nothing known is faster, and BudgetOverError."""
        if compilation.selected is not None:
            return compilation
        if compilation.model is None or not (compilation.offers or compilation.early):
            raise NoPlacementError("it is not known yet how parts of the model run")
        if compilation.budget is not None and all(plan.label != FLOAT32 for plan in compilation.plans):
            # The search was stopped before any error was measured.
            compilation = replace(compilation, budget=None, proposal=None, plans=())
        context.progress(Progress("finish", 0, 1))
        for attempt in count():
            context.course.deadline.check()
            if attempt:  # a kernel of the plans has failed
                engines = tuple(plan for plan in compilation.early if plan.original and attempt == 1)
                compilation = replace(compilation, plans=(), early=engines)
            try:
                return _if_faster(compilation, self.select(context, self._compared(context, compilation)))
            except (KernelRejectedError, PlanDroppedError) as error:
                log.info("placing again: %s", error)
        raise AssertionError("the loop ends by returning or raising")

    def _compared(self, context: Context, compilation: Compilation) -> Compilation:
        """What is known with the plans that are compared. Raises NoPlacementError where there is none of our own.

        No other placement is taken where an early plan is faster than that could become, where it hardly gains, or
        where comparing it would take too long. The plans are then those that were compared when the user was last told
        of the best one, so their times are known. Where comparing takes long, an early mix that the user was told of is
        taken before anything is placed.
        """
        told = told_best(context, compilation)
        if told and _takes_long(context):
            return replace(compilation, plans=tuple(told))
        if _is_outrun(compilation):
            return _as_told(context, compilation)
        try:
            known = placed_by_known(context, compilation)
        except NoPlacementError:
            if not compilation.early:
                raise
            return replace(compilation, plans=tuple(without_placement(context, compilation)))
        if _hardly_gains(context, compilation, known):
            return _as_told(context, compilation)
        known = GpuStreams()(context, known)
        return replace(known, plans=tuple(short_list(context, known, known.plans, self.most_plans)))


def _as_told(context: Context, compilation: Compilation) -> Compilation:
    """Take the plans that were compared when the user was last told of the best one.

    On a GPU one with several streams is among them where there is time, or where one was compared.
    """
    if not _takes_long(context):
        compilation = GpuStreams()(context, compilation)
    most = 2 if any(plan.streams for plan in compilation.plans) else 1
    return replace(compilation, plans=tuple(short_list(context, compilation, compilation.plans, most)))


def _hardly_gains(context: Context, before: Compilation, known: Compilation) -> bool:
    """Whether the placement of what is known is not worth a comparison, since that of before was in one already."""
    proposal = before.proposal
    if context.course.comparing_s is None or proposal is None or not before.plans:
        return False
    least_us = (1 - _WORTH) * proposal.placement.predicted_us
    return _takes_long(context) or known.placed.placement.predicted_us > least_us


def _takes_long(context: Context) -> bool:
    """Whether there is little time for another comparison, by how long those before have taken."""
    comparing_s = context.course.comparing_s
    return comparing_s is not None and comparing_s > _LONG * context.course.deadline.remaining_s


def _is_outrun(compilation: Compilation) -> bool:
    """Whether an early plan is faster than the placement, which is in the model's own dtypes, could become."""
    if compilation.proposal is None or compilation.budget is not None:
        return False
    least_us = (1 - _GAIN) * compilation.proposal.placement.predicted_us
    return any(plan.placement.predicted_us < least_us for plan in compilation.early)


def _if_faster(before: Compilation, found: Compilation) -> Compilation:
    """What was found. Raises NoPlacementError where it was not compared with the first module, and is not faster."""
    timing = None if before.first is None else before.first.timing
    engines = [plan.placement.candidates[0] for plan in found.plans if plan.original]
    compared = any(not engine.variant.precision for engine in engines)
    if timing is not None and not compared and found.result.measured_us >= timing.median_us:
        raise NoPlacementError("the placement is not faster than the first module")
    return found
