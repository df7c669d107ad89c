"""Serving on a clock that only adds up what iterations cost: thousands of requests in seconds, without noise.

A run at a rate with few requests ends before the queue is as long as it would become, and so it flatters what is near
its limit. Here a run may have as many requests as that takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from collage.serve.core import Core
from collage.serve.costs import BucketCosts
from collage.serve.options import EngineOptions
from collage.serve.request import Request
from collage.serve.runner import Slice
from collage.serve.sampling import Sampling
from scripts.lib.serving.contender import NO_TARGET_MS, REQUEST_LEVEL_BATCH, serve_in_batches
from scripts.lib.serving.field import OURS, REQUEST_LEVEL
from scripts.lib.serving.iteration_costs import IterationCosts
from scripts.lib.serving.record import Served
from scripts.lib.serving.static_batch import run_static_batch
from scripts.lib.serving.trace import Arrival


class ClockRunner:
    """A runner that computes nothing: its clock goes on by what the iteration would take."""

    block_tokens, block_count = 32, 1 << 16
    max_length, vocabulary = 1 << 12, 2

    def __init__(self, costs: IterationCosts) -> None:
        self._costs = costs
        self.buckets = costs.buckets
        self.max_tokens = costs.buckets[-1]
        body_ms = tuple(accumulate(costs.body_ms, max))
        self._body = BucketCosts(costs.buckets, body_ms)
        self._whole = BucketCosts(costs.buckets, tuple(accumulate(costs.ms, max)), body_ms)
        self._now_s = 0.0

    def monotonic(self) -> float:
        """The time in seconds."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        """Rows of zeros, one for each slice that wants logits."""
        rows = sum(each.wants_logits for each in slices)
        self._now_s += 1e-3 * self._step_ms(slices, rows)
        return np.zeros((rows, self.vocabulary), np.float32)

    def cost_ms(self, tokens: int) -> float:
        """The time of an iteration of so many streams."""
        return self._whole.of(tokens)

    def body_ms(self, tokens: int) -> float:
        """The time of a chunk of so many tokens."""
        return self._body.of(tokens)

    def close(self) -> None:
        """There is nothing to free."""

    def _step_ms(self, slices: Sequence[Slice], rows: int) -> float:
        """The table's time for the tokens and the rows of logits, and what other contexts than the table's add."""
        tokens = sum(len(each.token_ids) for each in slices)
        ms = (self._whole.with_streams(rows) if rows else self._body).of(tokens)
        costs = self._costs
        for each in slices:
            count, more = len(each.token_ids), each.start - costs.context
            ms += more * costs.read_ms if count == 1 else more * count * costs.pair_ms
        return max(ms, 0.0)


def serve_on_clock(
    name: str, costs: IterationCosts, arrivals: Sequence[Arrival], running: int
) -> list[Served]:
    """What comes of the requests, served by Collage's engine or by a form of request-level scheduling."""
    runner = ClockRunner(costs)
    times: list[list[float]] = [[] for _ in arrivals]

    def note(number: int) -> None:
        times[number].append(runner.monotonic())

    if name == OURS:
        _serve(runner, list(enumerate(arrivals)), note, running, None)
    elif name == REQUEST_LEVEL:
        _in_batches(runner, arrivals, lambda batch: _serve(runner, batch, note, running, NO_TARGET_MS))
    else:
        _in_batches(
            runner, arrivals, lambda batch: _serve_whole(runner, batch, note, name == "shortest-first")
        )
    return [
        Served(arrival, (0,) * len(each), tuple(each)) for arrival, each in zip(arrivals, times, strict=True)
    ]


_Batch = list[tuple[int, Arrival]]
_Note = Callable[[int], None]


def _in_batches(runner: ClockRunner, arrivals: Sequence[Arrival], run: Callable[[_Batch], None]) -> None:
    serve_in_batches(run, REQUEST_LEVEL_BATCH, arrivals, runner)


def _serve(runner: ClockRunner, batch: _Batch, note: _Note, running: int, target_ms: float | None) -> None:
    """Serve the requests with the engine: those that have arrived are taken in before each iteration."""
    core = Core(runner, EngineOptions(max_running=running, prefix_caching=False, itl_target_ms=target_ms))
    sampling = {
        each.tokens: Sampling(temperature=0.0, ignore_eos=True, max_tokens=each.tokens) for _, each in batch
    }
    waiting = deque(batch)
    while waiting or core.busy:
        while waiting and waiting[0][1].at_s <= runner.monotonic():
            number, each = waiting.popleft()
            core.add(Request(number, each.prompt, sampling[each.tokens]), runner.monotonic())
        if not core.busy:
            runner.sleep(waiting[0][1].at_s - runner.monotonic())
            continue
        plan = core.plan(runner.monotonic())
        steps, _ = core.begin(plan, runner.monotonic())
        for event in core.finish(plan, core.run(steps), runner.monotonic()):
            note(event.id)
        core.left.clear()


def _serve_whole(runner: ClockRunner, batch: _Batch, note: _Note, shortest_first: bool) -> None:
    """Serve a static batch, whose answers come together."""
    taken: list[int] = []
    run_static_batch(
        runner,
        [each for _, each in batch],
        lambda place, _: taken.append(place),
        shortest_first=shortest_first,
    )
    for place in taken:
        note(batch[place][0])
