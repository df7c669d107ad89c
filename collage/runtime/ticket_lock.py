"""A ticket lock, which threads get in the order in which they asked for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class TicketLock:
    """Runs functions one at a time, in the order in which threads came.

    With ``threading.Lock`` the thread that releases it has it again before another one is awake. It is no context
    manager: code that gives a lock back can be interrupted by Ctrl-C before it has done so. Here each thread holds a
    lock of its own until it leaves the queue, in a ``with`` that Python enters and leaves without a gap for signals.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._last: _Place | None = None

    def run(self, function: Callable[[], Result]) -> Result:
        """What the function returns, which is called once all threads that came before have left."""
        mine = _Place(threading.Lock())
        with mine.kept:
            with self._guard:
                mine.before = before = self._last
                self._last = mine
            while before is not None:
                with before.kept:  # that thread has left
                    pass
                mine.before = before = before.before
            return function()


class _Place:
    """A thread's place in the queue."""

    __slots__ = ("before", "kept")

    def __init__(self, kept: threading.Lock) -> None:
        self.kept = kept
        """Held until the thread leaves the queue, whether or not its turn came."""
        self.before: _Place | None = None
        """The place to wait for: None from the thread's turn on. A thread that was interrupted before its turn leaves
        the place that those behind it have to wait for, too."""
