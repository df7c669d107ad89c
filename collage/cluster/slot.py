"""A place on a node where jobs are done: the object that a Ray actor is made of. It needs no Ray itself."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from collage.core.temporary import TemporaryFolder
from collage.frontend.read.weights import SUFFIX
from collage.graph.dataflow import Array
from collage.measure.worker.model_workers import ModelWorkers
from collage.measure.worker.process import Workers
from collage.measure.worker.protocol import Init
from collage.measure.worker.serialisation import pickle_message
from collage.measure.worker.session import WorkerSession


@dataclass(frozen=True)
class SentSession:
    """A session as it travels to nodes: the first message of its workers, and the files of its folder.

    ``init`` is pickled with the classes that nodes cannot import. ``files`` are the contents by name.
    """

    init: bytes
    files: Mapping[str, Array]

    @staticmethod
    def of(session: WorkerSession) -> SentSession:
        """The session, without reference values, which each node computes once, and without artifacts."""
        init = session.init
        files = {
            path.name: np.fromfile(path, np.uint8)
            for path in sorted(Path(init.folder).iterdir())
            if path.is_file() and path.suffix in (".onnx", ".bin", SUFFIX)
        }
        return SentSession(pickle_message(init), files)


class Slot:
    """Does jobs about one model, one at a time, with measuring worker processes of its own.

    A candidate that crashes ends such a process, and costs only itself. While ``run`` runs, other threads may call
    ``so_far`` and ``cancel``.
    """

    def __init__(self) -> None:
        self._workers = Workers()
        self._folder: TemporaryFolder | None = None
        self._model: ModelWorkers | None = None
        self._present: tuple[int, list[Any]] = -1, []
        """The number of the job that is done now, or was done last, and its parts."""
        self._cancelled = -1

    def prepare(self, sent: SentSession) -> None:
        """Write the model, start a worker and compute the reference values.

        Raises MeasurementError where the worker does not start.
        """
        self._folder = TemporaryFolder("measure")
        folder = self._folder.path
        for name, content in sent.files.items():
            (folder / name).write_bytes(content.data)
        init: Init = replace(pickle.loads(sent.init), folder=str(folder))
        self._model = ModelWorkers(self._workers, init)
        self._model.worker(init.threads)

    def run(self, job: bytes, number: int) -> list[Any]:
        """The parts of a job, which the caller numbers. They are not all there when the job is cancelled meanwhile."""
        assert self._model is not None
        parts: list[Any] = []
        self._present = number, parts
        for part in cloudpickle.loads(job).run(self._model):
            parts.append(part)
            if self._cancelled == number:
                break
        return parts

    def so_far(self, number: int) -> list[Any]:
        """The parts that are known of the job with that number: none where another job is the present one."""
        present, parts = self._present
        return list(parts) if present == number else []

    def cancel(self, number: int) -> None:
        """End the job with that number after its present part: its result is of no use any more."""
        self._cancelled = number

    def close(self) -> None:
        """End the worker processes and remove the folder."""
        if self._model is not None:
            self._model.release()
        self._workers.close()
        if self._folder is not None:
            self._folder.remove()
