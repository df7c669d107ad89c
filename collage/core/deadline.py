"""When a piece of work has to end: a limit in seconds that long work asks for, and that whoever started it moves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeAlias

Check: TypeAlias = Callable[[], None]
"""What long work calls from time to time. It raises where the work has to end."""


def endless() -> None:
    """The check of work that nobody ends."""


class BudgetOverError(BaseException):
    """The time for a piece of work is over.

    It is no Exception, so that it is not taken for a failure of a candidate: nothing is wrong with what was stopped.
    """


class Deadline:
    """The seconds since a piece of work began, and those that are left for its present stage; at first without end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._end = math.inf

    @property
    def elapsed_s(self) -> float:
        """The seconds since the work began."""
        return self._clock() - self._began

    @property
    def remaining_s(self) -> float:
        """The seconds that are left, at least 0; infinite where there is no end."""
        return max(0.0, self._end - self._clock())

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return self.remaining_s <= 0

    def check(self) -> None:
        """Raise BudgetOverError where no time is left."""
        if self.over:
            raise BudgetOverError("the time is over")

    def end_after(self, seconds: float) -> None:
        """Let the present stage end that many seconds after the work began; infinity takes the limit away."""
        self._end = self._began + seconds

    def allow(self, seconds: float) -> None:
        """Let the present stage end that many seconds from now."""
        self._end = self._clock() + seconds
