"""Anytime: a compile that may be stopped at any moment, by Ctrl-C or by its budget, and hands over its best module."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from collage.compiler.finishing import kept_s, least_s
from collage.compiler.passes.check_indices import CheckIndices
from collage.compiler.passes.first_module import FirstModule
from collage.compiler.passes.select_only import SelectOnly
from collage.compiler.plan import Plan
from collage.compiler.plan_failures import KernelRejectedError
from collage.compiler.share import budget_words, is_used_up, was_interrupted
from collage.compiler.state import Compilation, Context, Pass, run
from collage.compiler.whole_trials import chosen
from collage.core.deadline import BudgetOverError
from collage.errors import CollageError, DatabaseError, MeasurementError
from collage.report.best_so_far import BUDGET, FAILURE, INTERRUPT

log = logging.getLogger(__name__)

_INTERRUPTED_S = 20.0
"""The seconds that finishing may take after Ctrl-C, and where measuring has failed."""
_AHEAD = 1.03
"""A mix that is so many times as fast as the early engine is worth some seconds more."""
_LAST_SHARE = 0.4
"""The part of the time for finishing that is kept for an early engine, where there is one: to check and load it."""


@dataclass(frozen=True)
class Anytime:
    """Runs the passes of ``improve`` until they end, or until the budget is over or somebody presses Ctrl-C.

    Then ``finish`` makes a module of what is known, in the rest of the budget. Where there is no time for that, and the
    user was told of something faster than the engines, there are some seconds more for it. Else an early engine is
    handed over, or the first module. What was measured is in the database, and the next compile goes on from there.
    Where measuring fails and no kernel is to blame, such as on a full disk, it is as after Ctrl-C. So it is where the
    database fails, which goes on in memory then.

    Where no engine runs the whole model there is no first module, and no budget can be kept. Then what is known is
    finished without a limit. ``least`` are the passes that find a placement with few measurements where that fails; by
    default those of ``improve``.
    """

    improve: tuple[Pass, ...]
    finish: Pass
    least: tuple[Pass, ...] = ()

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets what the passes set, or at least the selection.

        Raises what the passes raise. Raises KeyboardInterrupt where there is no module yet, and at a second Ctrl-C.
        """
        course, budget_s = context.course, context.options.budget_s
        course.begin(compilation)
        if budget_s is not None:
            course.deadline.end_after(budget_s - kept_s(budget_s))
            late = compilation.first is not None and course.deadline.elapsed_s > budget_s
            if late and not was_interrupted(budget_s) and not is_used_up(budget_s):
                took_s = course.deadline.elapsed_s
                log.warning("the first module took %.1f s, more than %s", took_s, budget_words(budget_s))
        try:
            return run(self.improve, context, compilation)
        except BudgetOverError:
            assert budget_s is not None
            course.ended = INTERRUPT if was_interrupted(budget_s) else BUDGET
            log.info("the time is over: %s", budget_words(budget_s))
            course.deadline.end_after(budget_s)
        except KeyboardInterrupt:
            if not self._has_module(course.latest):
                raise
            course.ended = INTERRUPT
            log.warning("interrupted; handing over the best module so far (Ctrl-C again ends at once)")
            course.deadline.allow(_INTERRUPTED_S)
        except (MeasurementError, DatabaseError, OSError) as error:
            if not self._has_module(course.latest):
                raise
            course.ended = FAILURE
            log.warning("%s Handing over the best module so far.", _told(error))
            if isinstance(error, DatabaseError):
                context.database.go_on_in_memory()
            course.deadline.allow(_INTERRUPTED_S)
        return self._finished(context, course.latest or compilation)

    def _has_module(self, compilation: Compilation | None) -> bool:
        return compilation is not None and (compilation.first is not None or compilation.selected is not None)

    def _finished(self, context: Context, compilation: Compilation) -> Compilation:
        """The best that there is. The passes run again, without a limit, where there is nothing."""
        deadline = context.course.deadline
        early, left_s = _fastest_early(compilation), deadline.remaining_s
        end_s = deadline.elapsed_s + left_s
        if early is not None:
            deadline.allow((1 - _LAST_SHARE) * left_s)
        try:
            return self._checked(context, compilation)
        except (CollageError, OSError) as error:
            log.info("no placement is ready: %s", error)
        except BudgetOverError:
            log.info("there was no time to finish a placement")
            least = least_s(context.course.comparing_s)
            deadline.end_after(max(end_s, deadline.elapsed_s + least))
            found = None
            if self._knows_better(context, compilation, early):
                found = self._again(context, compilation)
                deadline.end_after(max(end_s, deadline.elapsed_s + least))
            if found is None and early is not None:
                found = _selected(context, compilation, early)
            if found is not None:
                return found
        deadline.end_after(math.inf)
        if compilation.first is None:
            compilation = FirstModule()(context, compilation)
        if compilation.first is not None:
            whole = compilation.first.because(_REASONS[context.course.ended])
            return CheckIndices()(context, chosen(context, compilation, whole))
        if not context.course.told_of_going_on:
            log.warning(
                "%s, and no engine runs the whole model: the compile goes on until there is a placement",
                _WHY[context.course.ended],
            )
            context.course.told_of_going_on = True
        found = self._again(context, compilation)
        if found is None and self.least:
            found = _tried("a placement of few candidates", lambda: run(self.least, context, compilation))
        return run(self.improve, context, compilation) if found is None else found

    def _knows_better(self, context: Context, compilation: Compilation, early: Plan | None) -> bool:
        """Whether the user was told of something faster than the first module and the early engine, if there is one."""
        best = context.course.best
        if early is not None:
            return context.course.ahead > _AHEAD
        first = None if compilation.first is None else compilation.first.timing
        return bool(best) and first is not None and 1e3 * best[-1].latency_ms < first.median_us

    def _again(self, context: Context, compilation: Compilation) -> Compilation | None:
        """Finish once more: what the first try has compared, checked and refused is in the database."""
        return _tried("finishing once more", lambda: self._checked(context, compilation))

    def _checked(self, context: Context, compilation: Compilation) -> Compilation:
        """What ``finish`` makes. Where the database fails, it is made once more with the database in memory."""
        try:
            return CheckIndices()(context, self.finish(context, compilation))
        except DatabaseError as error:
            log.warning("%s What is measured from now on is not kept.", error)
            context.database.go_on_in_memory()
            return CheckIndices()(context, self.finish(context, compilation))


def _told(error: Exception) -> str:
    """The message of a failure, as a whole sentence."""
    if not isinstance(error, OSError):
        return str(error)
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}."


def _fastest_early(compilation: Compilation) -> Plan | None:
    """The fastest early engine, if it is faster than the first module. Early mixes take longer to build."""
    first = None if compilation.first is None else compilation.first.timing
    least_us = math.inf if first is None else first.median_us
    engines = [plan for plan in compilation.early if plan.original and plan.placement.predicted_us < least_us]
    return min(engines, key=lambda plan: plan.placement.predicted_us, default=None)


def _selected(context: Context, compilation: Compilation, early: Plan) -> Compilation | None:
    """The compilation with the early plan selected; None where it fails, or where there is no time for that either."""
    only = replace(compilation, proposal=None, budget=None, plans=(), early=(early,))
    select = SelectOnly(_EARLY[context.course.ended].format(early.label))
    return _tried(early.label, lambda: CheckIndices()(context, select(context, only)))


def _tried(about: str, make: Callable[[], Compilation]) -> Compilation | None:
    try:
        return make()
    except (BudgetOverError, CollageError, KernelRejectedError, OSError) as error:
        log.info("%s: %s", about, error or "there was no time")
        return None


_WHY = {
    BUDGET: "the budget is over",
    INTERRUPT: "the compile was interrupted",
    FAILURE: "measuring failed",
}
_EARLY = {
    BUDGET: "{}: the budget was over before anything faster was compared with it.",
    INTERRUPT: "{}: the compile was interrupted before anything faster was compared with it.",
    FAILURE: "{}: measuring failed before anything faster was compared with it.",
}
_REASONS = {
    BUDGET: "the budget was over before a placement was known to be faster.",
    INTERRUPT: "the compile was interrupted before a placement was known to be faster.",
    FAILURE: "measuring failed before a placement was known to be faster.",
}
