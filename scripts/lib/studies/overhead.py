"""The cost of a launch without its kernel: a network of many operators that do nothing, on the team of threads."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from collage.native import LaunchList, Step, Task, team_of
from collage.native.library import address_of, core

LAUNCHES = 1000
RUNS = 300
LIMIT_NS = 1000.0


def launch_overhead(threads: int) -> dict[str, Any]:
    """Nanoseconds of a launch list over its length. All threads share each launch and meet at its end.

    Raises CollageError without the native core.
    """
    nothing = Task(address_of(core().collage_nothing))
    network = LaunchList(team_of(threads), [Step((nothing,) * threads)] * LAUNCHES)
    samples = []
    for _ in range(RUNS):
        start = time.perf_counter_ns()
        network()
        samples.append((time.perf_counter_ns() - start) / LAUNCHES)
    return {
        "threads": threads,
        "launches": LAUNCHES,
        "median_ns": round(float(np.median(samples)), 1),
        "min_ns": round(min(samples), 1),
        "under_limit": bool(np.median(samples) < LIMIT_NS),
    }
