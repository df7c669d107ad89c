"""The workers of one model: the folder that they share, and one worker for each number of threads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.core.deadline import BudgetOverError
from collage.core.temporary import TemporaryFolder
from collage.errors import MeasurementError
from collage.frontend.simplify import save_proto
from collage.measure_db.fingerprint import fingerprint
from collage.measure_db.measured_model import MeasuredModel
from collage.measure_db.process import WorkerDiedError, WorkerProcess, Workers
from collage.measure_db.protocol import ORIGINAL_FILE, VALUES, Evaluate, Evaluated, Init, SentModel
from collage.measure_db.samples import fatal_samples
from collage.measure_db.serialisation import carried_modules, pickle_backend
from collage.measure_db.settings import MeasureSettings

log = logging.getLogger(__name__)

_EVALUATE_LIMIT_S = 1800.0
_LEAST_EVALUATE_S = 60.0
"""The longest and the shortest limit of a model's reference run. Between them each operator has a candidate's limit."""


class WorkerSession:
    """Starts workers of one model when they are needed, and ends them.

    Nothing is started or written before it is needed. Workers come from ``workers`` and go back there; without it the
    session has its own. Methods that need a worker raise MeasurementError when it cannot be started, or when a backend
    cannot be sent to it.
    """

    def __init__(
        self, measured: MeasuredModel, settings: MeasureSettings, workers: Workers | None = None
    ) -> None:
        self.measured = measured
        self.settings = settings
        self._workers = Workers() if workers is None else workers
        self._owns_workers = workers is None
        self._running: dict[int, WorkerProcess] = {}
        self._folder: TemporaryFolder | None = None
        self._init: Init | None = None
        self._wrong: Mapping[int, str] = {}

    def close(self) -> None:
        """Give the workers back and remove the folder. Closing twice does nothing."""
        try:
            for threads, worker in self._running.items():
                self._workers.release(worker, threads)
            if self._owns_workers:
                self._workers.close()
        finally:
            self._running = {}
            if self._folder is not None:
                self._folder.remove()
            self._init = self._folder = None

    @property
    def folder(self) -> str:
        """The folder with the model, the reference values and the artifacts. It is made on first use."""
        return self.init.folder

    @property
    def init(self) -> Init:
        """The first message to a worker on the settings' number of threads. Its folder is made on first use."""
        if self._init is None:
            self._init = self._begin()
        return self._init

    def worker(self, threads: int) -> WorkerProcess:
        """A worker on that many threads that has imported the model and computed the reference values."""
        known = self._running.get(threads)
        if known is not None and known.alive:
            return known
        worker = self._running[threads] = self._workers.start(replace(self.init, threads=threads))
        limit_s = self.settings.limits.time_s
        nodes = len(self.measured.model.onnx.graph.node)
        try:
            evaluated: Evaluated = worker.ask(
                Evaluate(limit_s), min(_LEAST_EVALUATE_S + limit_s * nodes, _EVALUATE_LIMIT_S)
            )
        except WorkerDiedError as died:
            raise MeasurementError(
                f"computing reference values with ONNX Runtime: {died.rejection.message}"
            ) from died
        except BudgetOverError:
            worker.kill()  # the next one computes what this one has not
            raise
        self._wrong = evaluated.wrong
        return worker

    def ask(self, message: Any, what: str, threads: int) -> Any:
        """The reply of the worker on that many threads, or the Rejection that its death means.

        ``what`` names the candidate in the log. ``message.limit_s`` is the time limit in seconds.
        """
        try:
            return self.worker(threads).ask(message, message.limit_s)
        except WorkerDiedError as died:
            log.info("%s: %s", what, died.rejection)
            return died.rejection

    def wrong_conversions(self) -> Mapping[int, str]:
        """The ONNX nodes (by index) whose conversion the reference run has found to be wrong, with the reasons."""
        self.worker(self.settings.threads)
        return self._wrong

    def fatal_samples(self) -> set[Path]:
        """The notes of inputs that ended a worker while it computed reference values for them."""
        return set() if self._init is None else fatal_samples(Path(self._init.folder) / VALUES)

    def _begin(self) -> Init:
        """Make the folder with the model."""
        model, settings = self.measured.model, self.settings
        pickles = {name: pickle_backend(name, backend) for name, backend in settings.backends.items()}
        self._folder = TemporaryFolder("measure")
        folder = self._folder.path
        save_proto(model.onnx, folder / "model.onnx")
        if self.measured.original is not None:
            save_proto(self.measured.original, folder / ORIGINAL_FILE)
        return Init(
            folder=str(folder),
            model=SentModel(model.name, dict(model.opaque), fingerprint(model.graph), model.example_inputs),
            backends=pickles,
            carried=carried_modules(settings.backends.values()),
            threads=settings.threads,
            memory_bytes=settings.limits.worker_memory(),
        )
