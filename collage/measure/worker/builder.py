"""Processes that build candidates before the worker comes to them, on cores that nobody needs just then."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from statistics import median

from collage.core.deadline import BudgetOverError
from collage.measure.worker.plan_protocol import BuildAhead, BuiltAhead, PlanKernel
from collage.measure.worker.process import WorkerProcess
from collage.measure.worker.protocol import CandidateRequest

log = logging.getLogger(__name__)

_MOST_WAITING = 16
"""More are not planned ahead: what is measured meanwhile may show that some need not be built."""
_KNOWN, _WORTH_S = 3, 0.01
"""A backend whose kernels took less in so many builds is left to the worker."""
_WAIT_S = 5.0
"""How long the worker waits for a kernel that is being built, before it builds the kernel itself."""

Start = Callable[[Callable[[WorkerProcess], None]], WorkerProcess]
"""Starts a worker that has the model. It passes the worker to its argument before it waits for that."""


class Builder:
    """Builds kernels in processes of its own. It must be closed after use.

    A kernel that ends its process, or fails, is left to the worker, which finds the same out. No method raises.
    """

    def __init__(self, start: Start, limit_s: float, count: int = 1) -> None:
        """Starts ``count`` processes. A kernel may take ``limit_s`` seconds."""
        self._start = start
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._waiting: deque[PlanKernel] = deque()
        self._building: set[str] = set()
        self._taken: dict[str, list[float]] = defaultdict(list)
        self._processes: list[WorkerProcess] = []
        self._over = False
        # A process ends with the thread that started it, so this thread asks it, too.
        self._threads = [
            threading.Thread(target=self._work, name=f"collage-builder-{number}", daemon=True)
            for number in range(count)
        ]
        self._at_work = count
        for each in self._threads:
            each.start()

    @property
    def spent_s(self) -> float:
        """The seconds in which kernels were built so far, with those in which the process stood still."""
        with self._changed:
            return sum(map(sum, self._taken.values()))

    def offer(self, kernels: Iterator[PlanKernel]) -> None:
        """Take the next kernels from the iterator, as many as are wanted now."""
        while not self._over and len(self._waiting) < _MOST_WAITING:
            kernel = next(kernels, None)
            if kernel is None:
                return
            if self._worthwhile(_backend(kernel)):
                with self._changed:
                    self._waiting.append(kernel)
                    self._changed.notify_all()

    def claim(self, kernel: PlanKernel) -> None:
        """The worker has come to this kernel: it is not built here any more. One that is being built is waited for."""
        with self._changed:
            if kernel in self._waiting:
                self._waiting.remove(kernel)
            self._changed.wait_for(lambda: kernel.key not in self._building, _WAIT_S)

    def close(self) -> None:
        """End the processes. Closing twice does nothing."""
        with self._changed:
            self._over = True
            self._waiting.clear()
            self._changed.notify_all()
            processes = [*self._processes]
        for process in processes:
            process.end()
        for thread in self._threads:
            thread.join()

    def _worthwhile(self, backend: str) -> bool:
        with self._changed:
            taken = self._taken[backend]
            return len(taken) < _KNOWN or median(taken[-_KNOWN:]) >= _WORTH_S

    def _work(self) -> None:
        mine: list[WorkerProcess] = []

        def started(process: WorkerProcess) -> None:
            mine.append(process)
            with self._changed:
                self._processes.append(process)
                if self._over:
                    process.end()

        try:
            process = self._start(started)
            while (kernel := self._next()) is not None:
                try:
                    self._build(process, kernel)
                finally:
                    with self._changed:
                        self._building.discard(kernel.key)
                        self._changed.notify_all()
        except (Exception, BudgetOverError) as error:  # whatever fails here, the worker builds by itself
            log.info("a process builds no kernels ahead any more: %s", error)
        finally:
            with self._changed:
                self._at_work -= 1
                if not self._at_work:
                    self._over = True
                    self._waiting.clear()
            for process in mine:
                process.kill()

    def _build(self, process: WorkerProcess, kernel: PlanKernel) -> None:
        began = time.monotonic()
        built = process.ask(BuildAhead(kernel, self._limit_s), self._limit_s)
        seconds = built.seconds if isinstance(built, BuiltAhead) else time.monotonic() - began
        with self._changed:
            self._taken[_backend(kernel)].append(seconds)

    def _next(self) -> PlanKernel | None:
        """The next kernel to build, which is waited for; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._waiting)
            if self._over:
                return None
            kernel = self._waiting.popleft()
            self._building.add(kernel.key)
            return kernel


def _backend(kernel: PlanKernel) -> str:
    assert isinstance(kernel.what, CandidateRequest)
    return kernel.what.backend
