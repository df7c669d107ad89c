"""How long each launch takes inside the network, with the caches as its neighbours leave them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from collage.graph.dataflow import Array
from collage.runtime.executor import Executor
from collage.schedule.schedule import TEAM, Ordered

_WARM_RUNS = 3
_LEAST_RUNS = 9


def launch_times_us(executor: Executor, inputs: Sequence[Array], limit_s: float = 0.5) -> list[float]:
    """Medians in microseconds, in launch order, over runs of the network on these inputs.

    A launch begins when what it waits for has ended: the one before it on its stream, those it has events of, all
    others where it takes the whole team. Whatever passes until it runs counts to it, so that without streams the
    times add up to the whole.
    """
    ordered = executor.program.ordered
    clock = np.zeros(len(executor.program.launches), np.int64)
    calls = executor.bind(clock)
    rows: list[list[int]] = []
    start = time.monotonic()
    while len(rows) < _WARM_RUNS + _LEAST_RUNS or time.monotonic() - start < limit_s:
        executor.set_inputs(inputs)  # each time: their buffers serve other values after their last use
        begin = time.monotonic_ns()
        for call in calls:
            call()
        ends = [int(each) for each in clock]
        rows.append([end - at for end, at in zip(ends, begins(ordered, ends, begin), strict=True)])
    medians = np.median(np.array(rows[_WARM_RUNS:]), axis=0) / 1e3
    return [float(each) for each in medians]


def begins(ordered: Ordered, ends: Sequence[int], begin: int) -> list[int]:
    """When each launch could begin, given when each ended, in any unit."""
    waits: dict[int, list[int]] = {}
    for u, v in ordered.events:
        waits.setdefault(v, []).append(u)
    found = [begin] * len(ends)
    last: dict[int, int] = {}
    met = latest = begin
    for v in ordered.schedule.order:
        stream = ordered.schedule.streams[v]
        if stream == TEAM:
            found[v] = latest
            last.clear()
            met = latest = ends[v]
        else:
            found[v] = max([last.get(stream, met), *(ends[u] for u in waits.get(v, ()))])
            last[stream] = ends[v]
            latest = max(latest, ends[v])
    return found
