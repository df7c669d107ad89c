"""A simulation of an engine on made-up costs, which checks at each iteration what must always hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collage.serve.core import Core
from collage.serve.options import EngineOptions
from collage.serve.plan import IterationPlan
from collage.serve.request import Event, Finish, Request
from collage.serve.runner import Slice
from collage.serve.sampling import Sampling


@dataclass
class NullRunner:
    """A runner without a model: token 1 is always the likeliest. An iteration costs 20 ms and 1 ms a token."""

    block_tokens: int = 4
    block_count: int = 32
    max_tokens: int = 64
    max_length: int = 128
    vocabulary: int = 3
    workers: int = 1

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        assert 0 < sum(len(each.token_ids) for each in slices) <= self.max_tokens
        written: list[int] = []
        for each in slices:
            end = each.start + len(each.token_ids)
            assert each.token_ids
            assert len(each.blocks) * self.block_tokens >= end
            written += each.blocks[each.start // self.block_tokens :]
        wanted = sum(each.wants_logits for each in slices)
        return np.tile(np.array([0, 1, 0], np.float32), (wanted, 1))

    def cost_ms(self, tokens: int) -> float:
        return 20.0 + tokens

    def close(self) -> None:
        pass


def parts(plan: IterationPlan) -> list[tuple[int, int]]:
    """The requests of an iteration, and the tokens of each."""
    return [(each.id, count) for each, count in zip(plan.sequences, plan.counts, strict=True)]


@dataclass(frozen=True)
class Job:
    """A request of a simulation. Times are in seconds; ``cancel_s`` is when its client leaves."""

    at_s: float
    prompt: tuple[int, ...]
    max_tokens: int
    priority: int = 0
    cancel_s: float | None = None
    timeout_s: float | None = None


@dataclass
class Record:
    """What came of a job."""

    tokens: int = 0
    finish: Finish | None = None
    times: list[float] = field(default_factory=list)


class Simulation:
    """Runs jobs to their end. ``workers`` iterations are in flight, and return in the order in which they began."""

    def __init__(self, jobs: Sequence[Job], options: EngineOptions, runner: NullRunner) -> None:
        self.jobs = jobs
        self.runner = runner
        self.core = Core(runner, options)
        self.records = [Record() for _ in jobs]
        self.iterations: list[IterationPlan] = []
        self.iteration_ms: list[tuple[int, float]] = []
        self._now = 0.0
        self._flying: deque[tuple[IterationPlan, float, NDArray[np.float32]]] = deque()

    def run(self) -> None:
        """Run until everything has ended. Fails when nothing moves any more."""
        arrivals = deque(sorted(enumerate(self.jobs), key=lambda each: each[1].at_s))
        idle = 0
        while arrivals or self.core.busy:
            while arrivals and arrivals[0][1].at_s <= self._now:
                i, job = arrivals.popleft()
                sampling = Sampling(max_tokens=job.max_tokens, temperature=0)
                self.core.add(
                    Request(i, job.prompt, sampling, priority=job.priority, timeout_s=job.timeout_s), job.at_s
                )
            left = [
                event
                for i, job in enumerate(self.jobs)
                if job.cancel_s is not None and job.cancel_s <= self._now
                for event in self.core.cancel(i)
            ]
            self._take(left)
            moved = self._iteration() or bool(left)
            self._check()
            if not moved:
                idle += 1
                assert idle < 3 or arrivals, "nothing moves any more"
                self._now = max(self._now, arrivals[0][1].at_s) if arrivals else self._now + 1e-3
            else:
                idle = 0
        assert self.core.blocks.used == 0

    def _iteration(self) -> bool:
        plan = self.core.plan(self._now)
        again = self.core.plan(self._now)
        assert plan == again, "planning changed the pool"
        steps, events = self.core.begin(plan)
        self._take(events)
        self._check_blocks(steps)
        moved = bool(events or plan.preempted)
        if plan.sequences:
            self.iterations.append(plan)
            assert len(plan.sequences) <= self.core._limits.max_running
            cost = sum(self.runner.cost_ms(sum(len(s.token_ids) for s in step)) for step in steps)
            self.iteration_ms.append((plan.counts.count(1), cost))
            begin = self._flying[-1][1] if self._flying else self._now
            self._flying.append((plan, max(begin, self._now) + cost / 1e3, self.core.run(steps)))
            moved = True
        if self._flying and (len(self._flying) == self.runner.workers or not plan.sequences):
            done, self._now, logits = self._flying.popleft()
            self._take(self.core.finish(done, logits))
            moved = True
        return moved

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            record = self.records[event.id]
            assert record.finish is None
            record.finish = event.finish
            if event.token is not None:
                record.tokens += 1
                record.times.append(self._now)

    def _check(self) -> None:
        self.core.check()
        assert len(self.core._running) <= self.core._limits.max_running * self.runner.workers

    def _check_blocks(self, steps: Sequence[Sequence[Slice]]) -> None:
        """No block that an iteration writes is used by another sequence, or written twice."""
        size = self.runner.block_tokens
        written = [
            block
            for each in [slice for step in steps for slice in step]
            for block in each.blocks[each.start // size : -(-(each.start + len(each.token_ids)) // size)]
            if each.wants_logits or each.start % size == 0
        ]
        assert all(self.core.blocks._users[block] == 1 for block in written)
