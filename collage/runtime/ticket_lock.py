"""A ticket lock, which threads get in the order in which they asked for it."""

from __future__ import annotations

import threading
from collections import deque


class TicketLock:
    """A context manager. The thread that leaves it hands the lock to the one that has waited longest.

    With ``threading.Lock`` the thread that releases the lock has it again before another one is awake. Of eight threads
    that call a module in a loop, one may then get nearly all calls.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._held = False

    def __enter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        try:
            mine.acquire()  # the thread that hands over releases it
        except BaseException:  # Ctrl-C
            with self._guard:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                else:
                    self._hand_over()
            raise

    def __exit__(self, *error: object) -> None:
        with self._guard:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()
        else:
            self._held = False
