"""Runs cases in child processes that may die: each thread has a child, and a new one after that has crashed or hung."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, TypeVar

from collage.core.child_process import ChildError, ChildProcess
from collage.core.forked_process import fork_servers

CRASHED, HUNG = "crashed", "hung"
_START_S = 300.0
_FRESH_AFTER = 200
"""The number of cases after which a child is replaced, since libraries keep some memory of each case."""
_TAIL = 2000

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What came of a case: a status of the child's, or CRASHED or HUNG, and why."""

    status: str
    message: str = ""
    seconds: float = 0.0


class Child:
    """A process that runs ``main`` of a module and answers each message with an ``Outcome``.

    It begins with the message ``start``. With ``fork`` it is forked from a process that has imported the module.
    Its temporary files go with it, and what it prints is part of the message when it crashes.
    """

    def __init__(self, module: str, start: object, limit_s: float, *, fork: bool = False) -> None:
        self._module, self._first, self._limit_s, self._fork = module, start, limit_s, fork
        self._servers, self._owns_servers = fork_servers()
        self._process: ChildProcess | None = None
        self._served = 0

    def start(self) -> Any:
        """Start the process anew. Returns its reply to the first message. Raises ChildError and TimeoutError."""
        self._close_process()
        self._served = 0
        self._errors = TemporaryFile()  # noqa: SIM115 - closed with the process
        self._folder = TemporaryDirectory(prefix="collage-case-", ignore_cleanup_errors=True)
        environment, forked = {**os.environ, "TMPDIR": self._folder.name}, None
        if self._fork:
            forked = self._servers.fork(self._module, (self._module,), self._errors.fileno(), environment)
        self._process = ChildProcess(self._module, self._errors, environment, forked)
        return self._process.ask(self._first, _START_S)

    def ask(self, message: object) -> Outcome:
        """The outcome of one case, which may kill the process."""
        try:
            if self._process is None or self._served >= _FRESH_AFTER:
                self.start()
            assert self._process is not None
            self._served += 1
            self._errors.truncate(0)
            found: Outcome = self._process.ask(message, self._limit_s)
            return found
        except TimeoutError:
            outcome = Outcome(HUNG, f"took more than {self._limit_s:g} s", self._limit_s)
        except ChildError as error:
            self._errors.seek(0)
            text = " ".join(self._errors.read()[-_TAIL:].decode(errors="replace").split())
            outcome = Outcome(CRASHED, f"{error}; {text}")
        self._close_process()
        return outcome

    def end(self) -> None:
        """Kill the process while another thread waits for an outcome, which says nothing then."""
        if self._process is not None:
            self._process.end()

    def close(self) -> None:
        """End the process, and what it was forked from."""
        self._close_process()
        if self._owns_servers:
            self._servers.close()

    def _close_process(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._errors.close()
            self._folder.cleanup()
        self._process = None


def run_all(
    children: Sequence[Child],
    cases: Iterable[T],
    run: Callable[[Child, T], Outcome],
    take: Callable[[T, Outcome], None],
) -> None:
    """Run all cases, each in a child that is free, and give each outcome to ``take``, one at a time.

    After an interrupt or an exception no case begins, and those that run are killed and not taken. Closes the children.
    """
    waiting, lock, stop = iter(cases), threading.Lock(), threading.Event()

    def work(child: Child) -> None:
        try:
            while not stop.is_set():
                with lock:
                    case = next(waiting)
                outcome = run(child, case)
                with lock:
                    if not stop.is_set():
                        take(case, outcome)
        except StopIteration:
            pass
        except BaseException:
            stop.set()
            raise

    try:
        with ThreadPoolExecutor(len(children)) as pool:
            working = [pool.submit(work, child) for child in children]
            try:
                for each in working:
                    each.result()
            except BaseException:
                stop.set()
                for child in children:
                    child.end()
                raise
    finally:
        for child in children:
            child.close()
