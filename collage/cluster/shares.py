"""Who does which job, and which jobs are given out again: the decisions, without machines or clocks of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeAlias

WorkerId: TypeAlias = int

_PATIENCE = 2.0
"""A job is late when it takes this many times as long as jobs of its size usually do."""
_COPIES = 2
"""The workers that may do the same job at the same time."""


@dataclass
class Shares:
    """The jobs of one run, by position, and the workers that have them.

    The largest job that nobody has begun goes to the next worker that is free. When all are begun, an idle worker gets
    a copy of the job that is most late, and the first answer counts. The job of a worker that is lost is given out
    again, at most ``tries`` times: after that it is the job that ends workers.
    """

    sizes: Sequence[int]
    tries: int = 3
    _waiting: list[int] = field(init=False)
    _holders: dict[WorkerId, tuple[int, float]] = field(default_factory=dict, init=False)
    """The job of each worker that has one, and when it began."""
    _failures: dict[int, int] = field(default_factory=dict, init=False)
    _finished: set[int] = field(default_factory=set, init=False)
    _pace: list[float] = field(default_factory=list, init=False)
    """Seconds for each unit of size, of each job that is done."""

    def __post_init__(self) -> None:
        self._waiting = sorted(range(len(self.sizes)), key=lambda job: (-self.sizes[job], job))

    @property
    def open(self) -> list[int]:
        """The jobs without a result."""
        return [job for job in range(len(self.sizes)) if job not in self._finished]

    def job_of(self, worker: WorkerId) -> int | None:
        """The job that the worker has."""
        return self._holders[worker][0] if worker in self._holders else None

    def take(self, worker: WorkerId, now: float) -> int | None:
        """A job for an idle worker at the time ``now``, in seconds, or None where it has to wait."""
        job = self._waiting.pop(0) if self._waiting else self._late(now)
        if job is not None:
            self._holders[worker] = job, now
        return job

    def done(self, worker: WorkerId, now: float) -> tuple[int, list[WorkerId]] | None:
        """The worker's job, which it has done, and the others that do it, too; None where another one was first."""
        job, began = self._holders.pop(worker)
        if job in self._finished:
            return None
        self._finished.add(job)
        self._pace.append((now - began) / max(1, self.sizes[job]))
        return job, self._others(job)

    def lost(self, worker: WorkerId) -> int | None:
        """The worker will not answer any more. Returns its job where that is given up, since it ends workers."""
        if worker not in self._holders:
            return None
        job, _ = self._holders.pop(worker)
        if job in self._finished:
            return None
        self._failures[job] = self._failures.get(job, 0) + 1
        if self._others(job):
            return None
        if self._failures[job] >= self.tries:
            self._finished.add(job)
            return job
        self._waiting.insert(0, job)
        return None

    def _others(self, job: int) -> list[WorkerId]:
        return [worker for worker, (held, _) in self._holders.items() if held == job]

    def _late(self, now: float) -> int | None:
        """The job that is most late, of those that too few workers do."""
        usual = median(self._pace) if self._pace else 0.0
        late: list[tuple[float, int]] = []
        for job, began in dict(self._holders.values()).items():
            limit = _PATIENCE * usual * max(1, self.sizes[job])
            if job not in self._finished and len(self._others(job)) < _COPIES and now - began >= limit:
                late.append((now - began - limit, -job))
        return -max(late)[1] if late else None
