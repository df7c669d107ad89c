"""A time line of one real run, in the format of Chrome's trace viewer and Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collage.graph.dataflow import Array
from collage.runtime.executor import Executor
from collage.schedule.schedule import TEAM

_WARM_RUNS = 5


def trace(executor: Executor, inputs: Sequence[Array]) -> dict[str, Any]:
    """The events of a warm run: one for each launch, on the row of its thread, or on all rows where the team runs it.

    Times are microseconds from the first launch on. To write them takes about 50 ns for each launch.
    """
    program = executor.program
    starts, ends = (np.zeros(len(program.launches), np.int64) for _ in range(2))
    calls = executor.bind(ends, starts)
    for _ in range(_WARM_RUNS + 1):
        executor.set_inputs(inputs)
        for call in calls:
            call()
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": thread, "name": "thread_name", "args": {"name": f"thread {thread}"}}
        for thread in range(program.threads)
    ]
    zero = int(np.min(starts)) if len(starts) else 0
    for v, region in enumerate(program.launches):
        stream = program.ordered.schedule.streams[v]
        rows = range(program.threads) if stream == TEAM else [stream]
        event = {
            "ph": "X",
            "pid": 0,
            "name": " + ".join(region.ops),
            "cat": region.backend,
            "ts": (int(starts[v]) - zero) / 1e3,
            "dur": (int(ends[v]) - int(starts[v])) / 1e3,
            "args": {
                "launch": v,
                "backend": region.backend,
                "nodes": list(region.sources),
                "layout": region.layout,
                "split": region.split,
                "threads": region.threads,
                "original": region.original,
                "profile": region.profile,
                "measured_us": round(region.cost_us, 3),
            },
        }
        events += [{**event, "tid": thread} for thread in rows]
    return {"traceEvents": events, "displayTimeUnit": "ns"}
