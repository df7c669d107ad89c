"""How long each launch takes inside the network, with the caches as its neighbours leave them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from collage.graph.dataflow import Array
from collage.runtime.executor import Executor

_WARM_RUNS = 3
_LEAST_RUNS = 9


def launch_times_us(executor: Executor, inputs: Sequence[Array], limit_s: float = 0.5) -> list[float]:
    """Medians in microseconds, in launch order, over runs of the network on these inputs.

    Whatever passes between two launches counts to the second one, so they add up to the whole.
    """
    clock = np.zeros(len(executor.program.launches), np.int64)
    calls = executor.bind(clock)
    rows: list[list[int]] = []
    start = time.monotonic()
    while len(rows) < _WARM_RUNS + _LEAST_RUNS or time.monotonic() - start < limit_s:
        executor.set_inputs(inputs)  # each time: their buffers serve other values after their last use
        begin = time.monotonic_ns()
        for call in calls:
            call()
        rows.append([int(each) for each in np.diff(clock, prepend=begin)])
    medians = np.median(np.array(rows[_WARM_RUNS:]), axis=0) / 1e3
    return [float(each) for each in medians]
