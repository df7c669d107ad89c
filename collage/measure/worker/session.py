"""The workers of one model: the folder that they share, and one worker for each number of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from collage.check.spent import AHEAD
from collage.core import background
from collage.core.deadline import Deadline
from collage.core.memory import spare_memory
from collage.core.no_room import no_room
from collage.core.temporary import TemporaryFolder
from collage.frontend.read.apart import save_model
from collage.kernel.target import usable_cores
from collage.measure.measured_model import MeasuredModel
from collage.measure.settings import MeasureSettings
from collage.measure.worker.builder import Builder
from collage.measure.worker.model_workers import ModelWorkers
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.process import WorkerProcess, Workers
from collage.measure.worker.protocol import Init, SentModel, TryKernel
from collage.measure.worker.serialisation import pickle_backend
from collage.measure_db.fingerprint import fingerprint

_WORKER_BYTES, _TIMES_WEIGHTS = 1 << 30, 8
"""What a second worker takes at most, besides so many times the model's weights."""
_MOST_BUILDERS = 6
"""More processes do not build kernels ahead: each of them takes seconds of a core to begin."""
_BUILD_LIMIT_S = 60.0
"""A kernel that is built ahead may take so many seconds more, since the process stands still while others measure."""


class WorkerSession(ModelWorkers):
    """Starts workers of one model when they are needed, and ends them; they share a folder.

    Nothing is started or written before it is needed. Workers come from ``workers`` and go back there; without it the
    session has its own. Methods that need a worker raise MeasurementError when it cannot be started, when a backend
    cannot be sent to it, or when its folder cannot be written, as on a full disk.
    """

    def __init__(self, measured: MeasuredModel, settings: MeasureSettings, workers: Workers | None = None) -> None:
        self.measured = measured
        self.settings = settings
        super().__init__(Workers() if workers is None else workers)
        self._owns_workers = workers is None
        self._folder: TemporaryFolder | None = None
        self._builder: Builder | None = None

    def close(self) -> None:
        """Give the workers back and remove the folder. Closing twice does nothing."""
        try:
            try:
                if self._builder is not None:
                    self._builder.close()
            finally:
                self.release()
                if self._owns_workers:
                    self._workers.close()
        finally:
            self._init = self._builder = None
            if self._folder is not None:
                self._folder.remove()
            self._folder = None

    @property
    def deadline(self) -> Deadline:
        """That of the compile that measures."""
        return self._workers.deadline

    @property
    def folder(self) -> str:
        """The folder with the model, the reference values and the artifacts. It is made on first use."""
        return self.init.folder

    def ask(self, message: Any, what: str, threads: int) -> Any:
        """The same, of what no other process builds."""
        if self._builder is not None and isinstance(message, TryKernel):
            self._builder.claim(PlanKernel(message.request, message.options))
        return super().ask(message, what, threads)

    def builder(self, *, start: bool) -> Builder | None:
        """What builds kernels on other cores while the worker measures.

        Where there is none yet it is started, if ``start``. None where there is no second core, or too little memory.
        """
        if self._builder is None and start and (count := self._builders()):
            settings, init = self.settings, replace(self.init, background=True)

            def started(tell: Callable[[WorkerProcess], None]) -> WorkerProcess:
                worker = self._workers.another(settings.threads, prepared=True)
                tell(worker)
                worker.begin(init)
                return worker

            self._builder = Builder(started, settings.limits.time_s + _BUILD_LIMIT_S, count)
        return self._builder

    @cached_property
    def weights_bytes(self) -> int:
        """The bytes of the model's constants."""
        return sum(array.nbytes for array in self.measured.model.graph.constants.values())

    def _builders(self) -> int:
        """The number of builders for which there are a core and memory besides the worker's."""
        if background.folder() is None:
            return 0
        count, spare = min(usable_cores() - 1, _MOST_BUILDERS), spare_memory()
        if spare is not None:
            count = min(count, spare // (_WORKER_BYTES + _TIMES_WEIGHTS * self.weights_bytes))
        return max(count, 0)

    def spent(self) -> Mapping[str, float]:
        """The seconds that workers have spent measuring so far, by kind of work (see ``collage.check.spent``)."""
        ahead = {} if self._builder is None else {AHEAD: round(self._builder.spent_s, 3)}
        return {**super().spent(), **ahead}

    def _begin(self) -> Init:
        """Make the folder with the model. Raises MeasurementError where the system refuses."""
        model, settings = self.measured.model, self.settings
        pickles = {name: pickle_backend(name, backend) for name, backend in settings.backends.items()}
        with no_room("the files of the model"):
            self._folder = TemporaryFolder("measure")
            folder = self._folder.path
            save_model(model.onnx, folder / "model.onnx")
        return Init(
            folder=str(folder),
            model=SentModel(model.name, dict(model.opaque), fingerprint(model.graph), model.example_inputs),
            backends=pickles,
            threads=settings.threads,
            memory_bytes=settings.limits.worker_memory(),
            nodes=len(model.onnx.graph.node),
            node_limit_s=settings.limits.time_s,
        )
