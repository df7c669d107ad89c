"""How long each launch takes inside the network, with the caches as its neighbours leave them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from collage.graph.dataflow import Array
from collage.kernel.kernel import Call
from collage.runtime.executor import Executor
from collage.schedule.schedule import begins

_LEAST_RUNS = 5


class NotedRuns:
    """Runs of a network that note when each launch ends. A call is one run, and the notes of all runs are kept."""

    def __init__(self, executor: Executor, inputs: Sequence[Array], clock: Array | None = None) -> None:
        """``clock`` (int64, an element for each launch) holds when each launch of a run ended, in ns, or 0 before."""
        self._executor = executor
        self._inputs = inputs
        self._clock = np.zeros(len(executor.program.launches), np.int64) if clock is None else clock
        self._calls = executor.bind(self._clock)
        self._runs: list[tuple[int, Array, Array]] = []

    def __call__(self) -> None:
        self._executor.set_inputs(self._inputs)  # their buffers serve other values after their last use
        self._clock.fill(0)
        begin = time.monotonic_ns()
        for call in self._calls:
            call()
        self._runs.append((begin, self._clock.copy(), self._executor.device_ns.copy()))

    def forget(self) -> None:
        """Drop the notes of all runs so far."""
        self._runs.clear()

    @property
    def longest_s(self) -> float:
        """The time of the longest run in seconds."""
        return max((int(clock.max(initial=begin)) - begin for begin, clock, _ in self._runs), default=0) / 1e9

    def launches_us(self) -> list[float]:
        """Medians in microseconds, in launch order.

        A launch begins when all that it waits for has ended: the launch before it on its stream, those whose events it
        waits for, and all earlier ones where it takes the whole team. The time until it really runs counts to it, so
        that without streams the times add up to the whole. A launch on a GPU takes its time there.
        """
        ordered = self._executor.program.ordered
        rows = []
        for begin, clock, on_device in self._runs:
            ends = [int(each) for each in clock]
            times = zip(ends, begins(ordered, ends, begin), on_device, strict=True)
            rows.append([end - at if ns < 0 else int(ns) for end, at, ns in times])
        return [float(each) for each in np.median(np.array(rows), axis=0) / 1e3]


def run_in_turns(noted: Call, limit_s: float) -> None:
    """Run for ``limit_s`` seconds, and at least five times."""
    start = time.monotonic()
    runs = 0
    while runs < _LEAST_RUNS or time.monotonic() - start < limit_s:
        noted()
        runs += 1
