"""How long the GPU does nothing between kernels of a replayed graph, by PyTorch's profiler, which sees all kernels."""

from __future__ import annotations

import statistics
from typing import Any

from scripts.lib.gpu.contenders import Contender


def idle_between_kernels(contender: Contender, runs: int = 20) -> dict[str, Any]:
    """Microseconds from the end of one kernel to the begin of the next, on the whole GPU, within a run."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.zeros(1, device="cuda")
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(runs):
            contender.enqueue()
            contender.wait()
    spans = sorted(
        (each.time_range.start, each.time_range.end)
        for each in profiler.events()
        if "cuda" in str(each.device_type).lower()
    )
    if len(spans) < 2:
        return {"kernels": len(spans)}
    gaps, end = [], spans[0][1]
    for begin, finish in spans[1:]:
        gaps.append(max(0.0, begin - end))
        end = max(end, finish)
    within = [each for each in gaps if each < 100]  # longer ones are waits of the host, between runs
    busy = sum(finish - begin for begin, finish in spans)
    return {
        "kernels": len(spans) / runs,
        "mean us": round(statistics.fmean(within), 3) if within else None,
        "median us": round(statistics.median(within), 3) if within else None,
        "kernel us": round(busy / runs, 2),
    }
