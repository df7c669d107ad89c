"""Worker processes of one model, one for each number of threads, which all know its reference values."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.check.samples import fatal_samples
from collage.core.deadline import BudgetOverError
from collage.errors import MeasurementError
from collage.measure.worker.process import WorkerDiedError, WorkerProcess, Workers
from collage.measure.worker.protocol import (
    VALUES,
    Ask,
    CheckKernel,
    Evaluated,
    Init,
    KernelFailed,
    RaceKernels,
    TryKernel,
    running_in,
)

log = logging.getLogger(__name__)

_EVALUATE_LIMIT_S = 1800.0
_LEAST_EVALUATE_S = 60.0
_SPENT_LIMIT_S = 5.0
"""The longest and the shortest limit of a model's reference run. Between them each operator has a candidate's limit."""


class ModelWorkers:
    """Starts workers of a model when they are needed, on the machine that has the folder of ``init``.

    Workers come from ``workers`` and go back there. Methods raise MeasurementError when a worker cannot be started.
    """

    def __init__(self, workers: Workers, init: Init | None = None) -> None:
        """Without ``init`` it is made on first use (``_begin``)."""
        self._init = init
        self._evaluated = Evaluated({})
        self._workers = workers
        self._running: dict[int, WorkerProcess] = {}

    @property
    def init(self) -> Init:
        """The first message to a worker."""
        if self._init is None:
            self._init = self._begin()
        return self._init

    def _begin(self) -> Init:
        raise NotImplementedError

    def release(self) -> None:
        """Give the workers back. A second call does nothing."""
        while self._running:
            threads, worker = self._running.popitem()
            self._workers.release(worker, threads)

    def end(self) -> None:
        """End the workers while another thread asks them, which sees that they have ended."""
        for worker in [*self._running.values()]:
            worker.end()

    def worker(self, threads: int) -> WorkerProcess:
        """A worker on that many threads that has imported the model and computed the reference values."""
        known = self._running.get(threads)
        if known is not None:
            if known.alive:
                return known
            known.kill()
        worker = self._running[threads] = self._workers.start(replace(self.init, threads=threads))
        node_limit_s = self.init.node_limit_s
        limit_s = min(_LEAST_EVALUATE_S + node_limit_s * self.init.nodes, _EVALUATE_LIMIT_S)
        try:
            self._evaluated = worker.ask(Ask("evaluate", (node_limit_s,), limit_s), limit_s)
        except WorkerDiedError as died:
            raise MeasurementError(f"computing reference values with ONNX Runtime: {died.rejection.message}") from died
        except BudgetOverError:
            worker.kill()  # the next one computes what this one has not
            raise
        return worker

    def ask(self, message: Any, what: str, threads: int) -> Any:
        """The reply of the worker on that many threads, or the Rejection that its death means.

        ``what`` names the candidate in the log. ``message.limit_s`` is the time limit in seconds. Messages about
        kernels get a KernelFailed, with the number of the kernel that ran.
        """
        try:
            return self.worker(threads).ask(message, message.limit_s)
        except WorkerDiedError as died:
            log.info("%s: %s", what, died.rejection)
            if isinstance(message, RaceKernels):
                return KernelFailed(int(running_in(self.init.folder)[0]), died.rejection, ended=True)
            if isinstance(message, (TryKernel, CheckKernel)):
                return KernelFailed(message.number, died.rejection, ended=True)
            return died.rejection

    def evaluated(self) -> Evaluated:
        """What the reference run of the model has found."""
        self.worker(self.init.threads)
        return self._evaluated

    def spent(self) -> Mapping[str, float]:
        """The seconds of all workers that live, by kind of work. What a worker does not tell quickly is left out."""
        found: Counter[str] = Counter()
        for worker in self._running.values():
            if worker.alive:
                with suppress(WorkerDiedError, MeasurementError, BudgetOverError):
                    found.update(worker.ask(Ask("spent", (), _SPENT_LIMIT_S), _SPENT_LIMIT_S))
        return found

    def fatal_samples(self) -> set[Path]:
        """The notes of inputs that ended a worker while it computed reference values for them."""
        return fatal_samples(Path(self.init.folder) / VALUES)
