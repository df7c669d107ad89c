"""Threads for callers that wait for a module in an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Background:
    """A few threads of its own, which are started when they are needed first, and end with it.

    A forked child has none of its parent's threads, and starts others.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    async def run(self, function: Callable[[], Result]) -> Result:
        """Call the function in one of the threads, and return its result; the event loop goes on meanwhile.

        Functions begin in the order in which they came. If the caller is cancelled, one that has not begun is never
        called, and of one that has begun the result is dropped.
        """
        if self._pool is None or self._process != os.getpid():
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="collage")
            self._process = os.getpid()
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)
