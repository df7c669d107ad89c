"""Work in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def in_thread(work: Callable[[], Result]) -> Future[Result]:
    """Begin the work in a new thread, which ends with it. The process may end earlier."""
    found: Future[Result] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    Thread(target=run, daemon=True).start()
    return found
