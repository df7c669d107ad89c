"""A ticket lock, which threads get in the order in which they asked for it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from collage.errors import CollageError

Result = TypeVar("Result")

_process = os.getpid()
"""Asked for once, since asking takes as long as all of a free lock."""


def _in_forked_child() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_in_forked_child)


class TicketLock:
    """Runs functions one at a time, in the order in which threads came.

    With ``threading.Lock`` the thread that releases it has it again before another one is awake. It is no context
    manager: code that gives a lock back can be interrupted by Ctrl-C before it has done so. Here each thread holds a
    lock of its own while it is in the queue, in a ``with`` that Python enters and leaves without a gap for signals.
    """

    def __init__(self, engine: str = "") -> None:
        """``engine`` names an engine whose threads a forked process does not have: there, nothing is run."""
        self._queue: deque[threading.Lock] = deque()
        self._engine = engine
        self._process = _process

    def run(self, function: Callable[[], Result]) -> Result:
        """What the function returns, which is called once all threads that came before have left.

        Raises CollageError in a forked process if there is an engine.
        """
        if self._engine and self._process != _process:
            raise CollageError(
                f"this module was loaded before the process forked, and the threads of {self._engine} did not come "
                "along: load it again in the child, or start the child by spawning."
            )
        mine, queue = threading.Lock(), self._queue
        with mine:
            queue.append(mine)
            while (first := queue[0]) is not mine:
                with first:  # that thread has left, or was interrupted
                    pass
                with suppress(ValueError):
                    queue.remove(first)
            try:
                return function()
            finally:
                queue.popleft()
