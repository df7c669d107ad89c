"""Work in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def in_thread(work: Callable[[], Result]) -> Future[Result]:
    """Begin the work in a new thread, which ends with it."""
    starter = ThreadPoolExecutor(1)
    found = starter.submit(work)
    starter.shutdown(wait=False)
    return found
