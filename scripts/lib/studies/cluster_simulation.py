"""A discrete simulation of a cluster: the jobs of a model on any number of nodes, by the crew's own decisions."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from collage.cluster.shares import Shares


@dataclass(frozen=True)
class JobTime:
    """A job: how many candidates it has, and the seconds that a worker took for it."""

    candidates: int
    seconds: float


@dataclass(frozen=True)
class Costs:
    """What a cluster adds, in seconds: measured, except for the network's speed, which is assumed.

    The machine that gives out jobs takes ``job_s`` for each job and ``outcome_s`` for each candidate, one after
    another. A worker takes ``start_s`` until it is ready, once it has the model, and models travel to the nodes one
    after another, in ``send_s`` each.
    """

    job_s: float
    outcome_s: float
    start_s: float
    send_s: float


@dataclass(frozen=True)
class Simulated:
    """Seconds with so many workers, and how busy the workers and the driver were, as shares of that time.

    Workers are busy with a job's second copy, too, although it is of no use.
    """

    workers: int
    seconds: float
    workers_busy: float
    driver_busy: float


def simulate(jobs: Sequence[JobTime], workers: int, costs: Costs) -> Simulated:
    """The time that the jobs take with so many workers, each on a node of its own, until the last job has a result.

    The answer of a job that another worker has done before costs the driver nothing. A worker that is told so ends
    after its present candidate; all candidates of a job are taken to last equally long.
    """
    shares = Shares([job.candidates for job in jobs])
    free_at = 0.0  # when the driver has time again
    driver = busy = 0.0
    began = [0.0] * workers
    turns = [costs.start_s + costs.send_s * (number + 1) for number in range(workers)]  # when each is free
    events = [(turn, number) for number, turn in enumerate(turns)]
    heapq.heapify(events)
    end = 0.0

    def comes(worker: int, at: float) -> None:
        turns[worker] = at
        heapq.heappush(events, (at, worker))

    while shares.open:
        due, worker = heapq.heappop(events)
        if due != turns[worker]:
            continue  # its job was cancelled after this was noted
        now = max(due, free_at)
        held = shares.job_of(worker)
        if held is not None:
            busy += due - began[worker]
            found = shares.done(worker, now)
            if found is not None:
                for other in found[1]:
                    comes(other, _cancelled(jobs[held], began[other], now))
                spent = costs.outcome_s * jobs[held].candidates
                free_at = now = end = now + spent
                driver += spent
        job = shares.take(worker, now)
        if job is None:
            comes(worker, now + _TICK_S)
            continue
        driver += costs.job_s
        began[worker] = free_at = now + costs.job_s
        comes(worker, free_at + jobs[job].seconds)
    return Simulated(workers, end, busy / (workers * end) if end else 0.0, driver / end if end else 0.0)


def bounds(jobs: Sequence[JobTime], costs: Costs) -> tuple[float, float]:
    """Seconds that no number of workers falls below: for the longest job, and for the driver's own work."""
    longest = max((job.seconds for job in jobs), default=0.0)
    driver = sum(costs.job_s + costs.outcome_s * job.candidates for job in jobs)
    return costs.start_s + costs.send_s + longest, driver


def _cancelled(job: JobTime, began: float, now: float) -> float:
    """When a worker ends that began the job and is told now that its answer is not needed."""
    each = job.seconds / max(1, job.candidates)
    parts = math.ceil(max(0.0, now - began) / each) if each else 0
    return min(began + max(1, parts) * each, began + job.seconds)


_TICK_S = 0.5
"""An idle worker asks again after this time whether a job has become late."""
