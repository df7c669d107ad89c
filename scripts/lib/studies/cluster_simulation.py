"""A discrete simulation of a cluster: the jobs of a model on any number of nodes, by the crew's own decisions."""

from __future__ import annotations

import heapq
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
    """Seconds with so many workers, and how busy the workers and the driver were, as shares of that time."""

    workers: int
    seconds: float
    workers_busy: float
    driver_busy: float


def simulate(jobs: Sequence[JobTime], workers: int, costs: Costs) -> Simulated:
    """The time that the jobs take with so many workers, each on a node of its own, until the last job has a result."""
    shares = Shares([job.candidates for job in jobs])
    free_at = 0.0  # when the driver has time again
    driver = busy = 0.0
    events = [(costs.start_s + costs.send_s * (number + 1), number) for number in range(workers)]
    heapq.heapify(events)
    end = 0.0
    while shares.open:
        now, worker = heapq.heappop(events)
        now = max(now, free_at)
        held = shares.job_of(worker)
        if held is not None:
            shares.done(worker, now)
            spent = costs.outcome_s * jobs[held].candidates
            free_at = now = end = now + spent
            driver += spent
            busy += jobs[held].seconds
        job = shares.take(worker, now)
        if job is None:
            heapq.heappush(events, (now + _TICK_S, worker))
            continue
        driver += costs.job_s
        free_at = now + costs.job_s
        heapq.heappush(events, (free_at + jobs[job].seconds, worker))
    return Simulated(workers, end, busy / (workers * end) if end else 0.0, driver / end if end else 0.0)


def bounds(jobs: Sequence[JobTime], costs: Costs) -> tuple[float, float]:
    """Seconds that no number of workers falls below: for the longest job, and for the driver's own work."""
    longest = max((job.seconds for job in jobs), default=0.0)
    driver = sum(costs.job_s + costs.outcome_s * job.candidates for job in jobs)
    return costs.start_s + costs.send_s + longest, driver


_TICK_S = 0.5
"""An idle worker asks again after this time whether a job has become late."""
