"""Glance: how the placement so far compares with the best engine, while the search goes on.

It is for people who wait: they see what they would get if they stopped the compile now. The comparison is the one that
a stopped compile would make, and the database keeps it.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from collage.compiler.finishing import kept_s
from collage.compiler.plan_failures import PlanDroppedError
from collage.compiler.short_list import SHORT, short_list
from collage.compiler.state import Compilation, Context

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Glance:
    """Runs the placement so far and the best engine in one short comparison.

    One ``of_streams`` does so only where there is a concurrent plan, which takes part.
    """

    of_streams: bool = False

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets nothing, and tells the course of the compile. What it takes leaves more of the budget for the end.

        Raises KernelRejectedError where a kernel fails.
        """
        if compilation.proposal is None or compilation.first is None:
            return compilation
        if self.of_streams and not any(plan.streams for plan in compilation.plans):
            return compilation
        bench = context.workbench(compilation)
        plans = short_list(context, compilation, compilation.plans, 2 if self.of_streams else 1)
        executables = [bench.assembler.assemble(plan, compilation.tunings) for plan in plans]
        deadline, budget_s = context.course.deadline, context.options.budget_s
        began_s = deadline.elapsed_s
        try:
            raced = bench.runs.race(executables, SHORT)
        except PlanDroppedError as dropped:
            log.info("the placement so far %s", dropped)
            return compilation
        # What the database knows takes no time here, and later a comparison of other plans does.
        context.course.comparing_s = max(context.course.comparing_s or 0.0, deadline.elapsed_s - began_s)
        if budget_s is not None:
            deadline.end_after(budget_s - kept_s(budget_s, context.course.comparing_s))
        times = {label: each.timing.median_us for label, each in raced.items()}
        engines = sorted((plan.label for plan in plans if plan.original), key=times.__getitem__)
        ours = min((plan.label for plan in plans if not plan.original), key=times.__getitem__)
        first = compilation.first.timing
        known_us = math.inf if first is None else first.median_us
        engine = (engines[0], times[engines[0]]) if engines else None
        if times[ours] < (known_us if engine is None else engine[1]):
            context.course.improved(ours, times[ours], engine)
        return compilation
