"""Processes that build candidates before the worker comes to them, on cores that nobody needs just then."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from statistics import median

from collage.core.deadline import BudgetOverError
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.process import WorkerProcess
from collage.measure.worker.protocol import Ask, CandidateRequest

log = logging.getLogger(__name__)

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
        self._waiting: list[PlanKernel] = []
        self._passed: set[PlanKernel] = set()
        self._building: set[PlanKernel] = set()
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

    def expect(self, kernels: Sequence[PlanKernel], *, first: bool) -> None:
        """The worker comes to these kernels, before the others that it comes to or after them."""
        with self._changed:
            both = (kernels, self._waiting) if first else (self._waiting, kernels)
            self._waiting = [*dict.fromkeys(chain(*both))]
            self._changed.notify_all()

    def claim(self, kernel: PlanKernel) -> None:
        """The worker has come to this kernel: it is not built here any more. One that is being built is waited for."""
        with self._changed:
            self._passed.add(kernel)
            self._changed.wait_for(lambda: kernel not in self._building, _WAIT_S)

    def close(self) -> None:
        """End the processes. Closing twice does nothing."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
            processes = [*self._processes]
        for process in processes:
            process.end()
        for thread in self._threads:
            thread.join()

    def _is_wanted(self, kernel: PlanKernel) -> bool:
        taken = self._taken[_backend(kernel)]
        worth = len(taken) < _KNOWN or median(taken[-_KNOWN:]) >= _WORTH_S
        return worth and kernel not in self._passed

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
                        self._building.discard(kernel)
                        self._changed.notify_all()
        except (Exception, BudgetOverError) as error:  # whatever fails here, the worker builds by itself
            log.info("a process builds no kernels ahead any more: %s", error)
        finally:
            with self._changed:
                self._at_work -= 1
                self._over = self._over or not self._at_work
            for process in mine:
                process.kill()

    def _build(self, process: WorkerProcess, kernel: PlanKernel) -> None:
        began = time.monotonic()
        built = process.ask(Ask("build_ahead", (kernel,), self._limit_s), self._limit_s)
        seconds = built if isinstance(built, float) else time.monotonic() - began
        with self._changed:
            self._taken[_backend(kernel)].append(seconds)

    def _next(self) -> PlanKernel | None:
        """The next kernel to build, which is waited for; None at the end."""
        with self._changed:
            while not self._over:
                while self._waiting:
                    kernel = self._waiting.pop(0)
                    if self._is_wanted(kernel):
                        self._passed.add(kernel)
                        self._building.add(kernel)
                        return kernel
                self._changed.wait()
            return None


def _backend(kernel: PlanKernel) -> str:
    assert isinstance(kernel.what, CandidateRequest)
    return kernel.what.backend
