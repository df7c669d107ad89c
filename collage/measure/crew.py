"""Measuring as jobs, which several workers do at the same time, here or on other machines.

A job can be pickled and asks a worker for whatever it needs, so it does not know where it runs. The crew decides who
does which job, and answers with what the jobs have found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from collage.measure.worker.session import WorkerSession

Part = TypeVar("Part")
Made = TypeVar("Made", covariant=True)


class Worker(Protocol):
    """Answers messages about one model, each in a process that a candidate may bring down."""

    def ask(self, message: Any, what: str, threads: int) -> Any:
        """The reply to a message, or the Rejection that the process's death means; see ``ModelWorkers.ask``."""

    def fatal_samples(self) -> set[Path]:
        """The notes of inputs that ended a process while it computed reference values for them."""


class Job(Protocol[Made]):
    """Work on one model that a single worker does from its beginning to its end. It must be picklable.

    Parts are small values of Collage's own classes, since they travel between machines.
    """

    @property
    def size(self) -> int:
        """What the job's time is about proportional to: the number of candidates. The largest jobs begin first."""

    def run(self, worker: Worker) -> Iterator[Made]:
        """Do the work, and give each part of the result when it is known."""


class MeasuringCrew(Protocol):
    """Workers that do jobs about one model."""

    def run(self, jobs: Sequence[Job[Part]]) -> Iterator[Part]:
        """The parts of the jobs' results, as soon as a job is done. Those of jobs that no worker could do are missing.

        KeyboardInterrupt and BudgetOverError are raised after the parts that are known.
        """

    def close(self) -> None:
        """End what the crew has started. Closing twice does nothing."""


class Crews(Protocol):
    """Makes crews, for example on a cluster."""

    def crew(self, session: WorkerSession) -> MeasuringCrew:
        """A crew for the session's model. Nothing is started before it gets jobs."""
