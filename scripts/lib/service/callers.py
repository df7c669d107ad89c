"""Calling one module from several threads, and checking the outputs, the fairness of turns, and the memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import collage
from collage.cli.arrays import fill_inputs
from collage.graph.dataflow import Array


def call_from_threads(
    module: collage.CompiledModule, threads: int, seconds: float, *, clones: bool
) -> dict[str, Any]:
    """Calls per thread, wrong outputs, the ratio of most calls to fewest, and resident memory before and after.

    Every thread has inputs of its own and compares each output, bit by bit, with what a call without others gave;
    ``clones`` gives each a clone. Resident memory is looked at after a first second.
    """
    inputs = [made_up(module, seed) for seed in range(threads)]
    expected = [module.run(each) for each in inputs]
    modules = [module.clone() if clones else module for _ in range(threads)]
    counts, wrong = [0] * threads, [0] * threads
    start, stop = threading.Barrier(threads + 1), threading.Event()

    def work(i: int) -> None:
        start.wait()
        while not stop.is_set():
            wrong[i] += not _equal(modules[i].run(inputs[i]), expected[i])
            counts[i] += 1

    callers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for each in callers:
        each.start()
    start.wait()
    time.sleep(min(1.0, seconds / 2))
    before = resident_bytes()
    time.sleep(seconds - min(1.0, seconds / 2))
    after = resident_bytes()
    stop.set()
    for each in callers:
        each.join()
    return {
        "clones": clones,
        "seconds": seconds,
        "calls": counts,
        "wrong": sum(wrong),
        "ratio": round(max(counts) / max(1, min(counts)), 3),
        "resident_before": before,
        "resident_after": after,
    }


def call_many_times(module: collage.CompiledModule, calls: int) -> dict[str, Any]:
    """The resident memory after a hundredth of the calls, and after all of them."""
    inputs = made_up(module, 0)
    marks = []
    for count in (calls // 100, calls - calls // 100):
        _repeat(lambda: module.run(inputs), count)
        marks.append(resident_bytes())
    return {"calls": calls, "resident_before": marks[0], "resident_after": marks[1]}


def _repeat(call: Callable[[], object], count: int) -> None:
    for _ in range(count):
        call()


def made_up(module: collage.CompiledModule, seed: int) -> dict[str, Array]:
    """Seeded random inputs."""
    return fill_inputs(module.program.inputs, {}, np.random.default_rng(seed))


def _equal(found: Mapping[str, Array], expected: Mapping[str, Array]) -> bool:
    return all(np.array_equal(found[name], array, equal_nan=True) for name, array in expected.items())


def resident_bytes() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
