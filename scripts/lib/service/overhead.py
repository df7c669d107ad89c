"""The cost of a call without its kernels: a network of kernels that do nothing, called in every possible way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collage.graph.dataflow import Array, TensorType
from collage.kernel.target import host
from collage.module.module import CompiledModule
from collage.native import NativeKernel, Step, Task
from collage.native.library import address_of, core
from collage.report.report import Report
from collage.runtime.bound import BoundCall
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts
from collage.schedule.program import Port, make_program
from collage.schedule.region import Region

KERNELS = 10
LIMIT_US = 5.0
_CALLS = 200
_SAMPLES = 100
_KIND = TensorType((64,), "float32")


class Nothing(NativeKernel):
    """A kernel that does nothing, on all threads."""

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """The kernel's only step."""
        return [Step((Task(address_of(core().collage_nothing)),) * self.threads)]


def network(threads: int, kernels: int = KERNELS) -> CompiledModule:
    """A module of this many launches, one after another, on 64 floats."""
    regions = [
        Region("nothing", ("nothing",), (v,), (), (v,), (v + 1,), threads=threads) for v in range(kernels)
    ]
    ports = [Port("x", 0, _KIND)], [Port("y", kernels, _KIND)]
    program = make_program(regions, *ports, dict.fromkeys(range(kernels + 1), _KIND), threads)
    target = host(threads)
    report = Report("nothing", str(target), threads, 0, 0, 0, 0, 0, 0, 0, 0, {}, {})
    executor = Executor(program, [Nothing(threads)] * kernels, {})
    return CompiledModule(Parts(program, [b""] * kernels, {}, target, {}), report, executor)


def call_overhead(threads: int) -> dict[str, Any]:
    """Microseconds of each way to call, median and least over samples of many calls."""
    module = network(threads)
    x = np.zeros(64, np.float32)
    bound = module.bind()
    assert isinstance(bound, BoundCall)
    ways: dict[str, Callable[[], object]] = {
        "module(x)": lambda: module(x),
        "module.run({...})": lambda: module.run({"x": x}),
        "bound()": bound,
        "its launch list alone": bound.calls[0],
    }
    return {
        "threads": threads,
        "kernels": KERNELS,
        "ways": {name: _time(call) for name, call in ways.items()},
        "limit_us": LIMIT_US,
    }


def _time(call: Callable[[], object]) -> dict[str, float]:
    samples = []
    for _ in range(_SAMPLES):
        start = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        samples.append((time.perf_counter_ns() - start) / _CALLS / 1e3)
    return {"median_us": round(float(np.median(samples)), 2), "min_us": round(min(samples), 2)}
