"""How long the GPU does nothing between kernels of a replayed graph, by PyTorch's profiler, which sees all kernels.

The profiler notes when each kernel begins and ends. It is not quite free, so the time of a run without it is given,
too: what that has beyond the kernels' own times is idle at most.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from scripts.lib.gpu.contenders import Contender

Span: TypeAlias = "tuple[float, float]"
"""When a kernel begins and ends, in microseconds."""

_PAUSE_S = 0.004
"""The host waits so long between runs, so that they can be told apart."""
_APART_US = 2000.0
_SKIPPED = 3
"""The profiler may miss kernels of its first runs."""


@dataclass(frozen=True)
class Idle:
    """A run's kernels, its microseconds from the first kernel's begin to the last one's end, and those without any."""

    kernels: int
    whole_us: float
    idle_us: float


def runs_of(spans: Sequence[Span], apart_us: float = _APART_US) -> list[list[Span]]:
    """The kernels of each run, in the order in which they begin."""
    runs: list[list[Span]] = []
    end = float("-inf")
    for begin, finish in sorted(spans):
        if begin - end > apart_us:
            runs.append([])
        runs[-1].append((begin, finish))
        end = max(end, finish)
    return runs


def idle_in(run: Sequence[Span]) -> Idle:
    """How long no kernel runs, on whatever stream, within a run."""
    begun, end = run[0]
    idle = 0.0
    for begin, finish in run[1:]:
        idle += max(0.0, begin - end)
        end = max(end, finish)
    return Idle(len(run), end - begun, idle)


def idle_between_kernels(contender: Contender, runs: int = 40) -> dict[str, Any]:
    """Microseconds of a run, of its kernels, and between them. Raises RuntimeError where the profiler sees nothing."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.zeros(1, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(runs):
            contender.enqueue()
            contender.wait()
            time.sleep(_PAUSE_S)
        torch.cuda.synchronize()
    spans = [
        (float(each.time_range.start), float(each.time_range.end))
        for each in profiler.events()
        if "cuda" in str(each.device_type).lower()
    ]
    if not spans:
        raise RuntimeError("the profiler has seen nothing on the GPU")
    return told(runs_of(spans), by_events_us(contender.enqueue))


def told(runs: Sequence[Sequence[Span]], event_us: float) -> dict[str, Any]:
    """Medians over the runs that have the usual number of kernels, without the first ones."""
    usual = statistics.mode(map(len, runs))
    kept = [each for each in map(idle_in, runs[_SKIPPED:] or runs) if each.kernels == usual]
    between = max(1, usual - 1)
    whole, idle = (statistics.median(getattr(each, name) for each in kept) for name in ("whole_us", "idle_us"))
    return {
        "kernels": usual,
        "runs": len(kept),
        "run us": round(whole, 2),
        "idle us": round(idle, 2),
        "mean idle us between kernels": round(idle / between, 3),
        "run us by events": round(event_us, 2),
        "at most, without the profiler": round(max(0.0, event_us - (whole - idle)) / between, 3),
    }


def by_events_us(enqueue: Callable[[], Any], runs: int = 51) -> float:
    """The median time of a run on the stream of Collage's kernels, by events before and after it."""
    from collage.core.cuda_driver import driver

    gpu = driver()
    first, last = gpu.new_event(timing=True), gpu.new_event(timing=True)
    times = []
    for _ in range(runs):
        gpu.synchronize(gpu.stream)
        gpu.record(first, gpu.stream)
        enqueue()
        gpu.record(last, gpu.stream)
        times.append(gpu.elapsed_ms(first, last) * 1e3)
    return statistics.median(times)
