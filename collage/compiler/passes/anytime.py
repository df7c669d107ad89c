"""Anytime: a compile that may be stopped at any moment, by Ctrl-C or by its budget, and hands over its best module."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from collage.compiler.passes.check_indices import CheckIndices
from collage.compiler.passes.first_module import FirstModule
from collage.compiler.state import Compilation, Context, Pass, run
from collage.compiler.whole_trials import chosen
from collage.core.deadline import BudgetOverError
from collage.errors import CollageError
from collage.report.best_so_far import BUDGET, INTERRUPT

log = logging.getLogger(__name__)

_SHARE = 0.25
_MOST_S = 15.0
"""The part of the budget that is kept for finishing: for the last comparison, the last check and loading the module."""
_INTERRUPTED_S = 20.0
"""The seconds that finishing may take after Ctrl-C."""


@dataclass(frozen=True)
class Anytime:
    """Runs the passes of ``improve`` until they end, or until the budget is over or somebody presses Ctrl-C.

    Then ``finish`` makes a module of what is known, in the rest of the budget. Where that cannot be done, the first
    module is handed over. What was measured is in the database, and the next compile goes on from there.
    """

    improve: tuple[Pass, ...]
    finish: Pass

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets what the passes set, or at least the selection.

        Raises what the passes raise. Raises KeyboardInterrupt where there is no module yet, and at a second Ctrl-C.
        """
        course, budget_s = context.course, context.options.budget_s
        course.begin(compilation)
        if budget_s is not None:
            course.deadline.end_after(budget_s - min(_SHARE * budget_s, _MOST_S))
            if compilation.first is not None and course.deadline.elapsed_s > budget_s:
                log.warning(
                    "the first module took %.1f s, more than the budget of %g s",
                    course.deadline.elapsed_s,
                    budget_s,
                )
        try:
            return run(self.improve, context, compilation)
        except BudgetOverError:
            assert budget_s is not None
            course.ended = BUDGET
            log.info("the budget of %g s is over", budget_s)
            course.deadline.end_after(budget_s)
        except KeyboardInterrupt:
            if not self._has_module(course.latest):
                raise
            course.ended = INTERRUPT
            log.warning("interrupted; handing over the best module so far (Ctrl-C again ends at once)")
            course.deadline.allow(_INTERRUPTED_S)
        return self._finished(context, course.latest or compilation)

    def _has_module(self, compilation: Compilation | None) -> bool:
        return compilation is not None and (compilation.first is not None or compilation.selected is not None)

    def _finished(self, context: Context, compilation: Compilation) -> Compilation:
        """The best that there is. The passes run again, without a limit, where there is nothing."""
        try:
            return CheckIndices()(context, self.finish(context, compilation))
        except (BudgetOverError, CollageError) as error:
            log.info("no placement is ready: %s", error)
        deadline = context.course.deadline
        deadline.end_after(math.inf)
        if compilation.first is None:
            compilation = FirstModule()(context, compilation)
        if compilation.first is not None:
            whole = compilation.first.because(_REASONS[context.course.ended])
            return CheckIndices()(context, chosen(context, compilation, whole))
        log.warning(
            "the budget is over, and no engine runs the whole model: the compile goes on until there is a placement"
        )
        return run(self.improve, context, compilation)


_REASONS = {
    BUDGET: "the budget was over before a placement was known to be faster.",
    INTERRUPT: "the compile was interrupted before a placement was known to be faster.",
}
