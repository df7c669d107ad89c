"""The clock of a compile: its budget, what is kept of it for the end, and what has ended the compile."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collage.core.deadline import Deadline
from collage.report.best_so_far import FINISHED

_LEAST_S = 1e-3
_FIRST_RESERVE_S, _MOST_SHARE = 4.0, 0.3
_INTERRUPTED_S = 20.0
"""The seconds that the end may take after Ctrl-C, and if measuring has failed."""
_END_S = 10.0
"""The seconds that the end has at least, also beyond the budget: a worker that was stopped has to start again."""


@dataclass(frozen=True)
class Budget:
    """The seconds that a compile may take. It may be a share of ``whole_s`` seconds for several compiles.

    If Ctrl-C has ``interrupted`` an earlier one of these, the compile hands over its first module.
    """

    seconds: float
    whole_s: float | None = None
    interrupted: bool = False

    @staticmethod
    def of(given: float | Budget | None) -> Budget | None:
        """The budget of so many seconds; None for no limit."""
        return given if isinstance(given, Budget) or given is None else Budget(given, given)

    @property
    def words(self) -> str:
        """The budget in words."""
        if self.whole_s is not None and self.whole_s != self.seconds:
            return f"{self.seconds:.3g} s, its share of the budget of {self.whole_s:g} s"
        return f"the budget of {self.seconds:g} s"


def share_of(budget_s: float | None, since: Deadline, left: int, *, interrupted: bool) -> Budget | None:
    """The budget of the next one of ``left`` compiles, which began at ``since``; None for no limit.

    If an earlier one was ``interrupted``, a compile hands over its first module.
    """
    if interrupted:
        return Budget(_LEAST_S, budget_s, interrupted=True)
    if budget_s is None:
        return None
    return Budget(max((budget_s - since.elapsed_s) / left, _LEAST_S), budget_s)


class Clock:
    """The deadline of a compile. ``ended`` says what has ended it (see ``report.best_so_far``)."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget
        self.deadline = Deadline()
        self.ended = FINISHED
        self._ending = False
        self._reserve_s = _FIRST_RESERVE_S
        self.keep(_FIRST_RESERVE_S)

    def keep(self, seconds: float) -> None:
        """Keep so many seconds of the budget for the end, but no more than a share of it; nothing at the end itself."""
        if self.budget is not None and not self._ending:
            self._reserve_s = max(self._reserve_s, min(seconds, _MOST_SHARE * self.budget.seconds))
            self.deadline.end_after(self.budget.seconds - min(self._reserve_s, _MOST_SHARE * self.budget.seconds))

    def finish(self) -> None:
        """The search has ended by itself. The end has the rest of the budget."""
        self._ending = True
        if self.budget is not None:
            self.deadline.end_after(self.budget.seconds)

    def stop(self, reason: str) -> None:
        """The search has ended for this reason. The end has the rest of the budget, and some seconds at least."""
        self.ended, self._ending = reason, True
        elapsed_s = self.deadline.elapsed_s
        if self.budget is None or self.budget.interrupted:
            self.deadline.allow(_INTERRUPTED_S)
        else:
            self.deadline.end_after(max(self.budget.seconds, elapsed_s + _END_S))

    def without_limit(self) -> None:
        """Go on until there is something to hand over."""
        self._ending = True
        self.deadline.end_after(math.inf)
