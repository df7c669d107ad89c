"""Who does which job, and which jobs are given out again: the decisions, without machines of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

WorkerId: TypeAlias = int


@dataclass
class Shares:
    """The jobs of one run, by position, and the workers that have them.

    The largest job that nobody has begun goes to the next worker that is free. The job of a worker that is lost is
    given out again, at most ``tries`` times: after that it is the job that ends workers.
    """

    sizes: Sequence[int]
    tries: int = 3
    _waiting: list[int] = field(init=False)
    _holders: dict[WorkerId, int] = field(default_factory=dict, init=False)
    """The job of each worker that has one."""
    _failures: dict[int, int] = field(default_factory=dict, init=False)
    _finished: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._waiting = sorted(range(len(self.sizes)), key=lambda job: (-self.sizes[job], job))

    @property
    def open(self) -> list[int]:
        """The jobs without a result."""
        return [job for job in range(len(self.sizes)) if job not in self._finished]

    def job_of(self, worker: WorkerId) -> int | None:
        """The job that the worker has."""
        return self._holders.get(worker)

    def take(self, worker: WorkerId) -> int | None:
        """A job for an idle worker, or None if there is none."""
        if not self._waiting:
            return None
        job = self._holders[worker] = self._waiting.pop(0)
        return job

    def done(self, worker: WorkerId) -> int:
        """The worker's job, which it has done."""
        job = self._holders.pop(worker)
        self._finished.add(job)
        return job

    def lost(self, worker: WorkerId) -> int | None:
        """The worker will not answer any more. Returns its job where that is given up, since it ends workers."""
        if worker not in self._holders:
            return None
        job = self._holders.pop(worker)
        self._failures[job] = self._failures.get(job, 0) + 1
        if self._failures[job] >= self.tries:
            self._finished.add(job)
            return job
        self._waiting.insert(0, job)
        return None
