"""Timing of kernels on a GPU: by events on its stream, with an L2 cache that holds none of their values."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache

import numpy as np

from collage.core.cuda_driver import driver
from collage.graph.dataflow import Array
from collage.graph.storage import CUDA
from collage.kernel.device_array import empty_on
from collage.kernel.device_call import DeviceCall

__all__ = ["device_clocked"]

_LEAST_BYTES = 1 << 20
_TIMES = 2
"""So many times the L2 cache is overwritten, which does not forget strictly by age."""


def device_clocked(call: DeviceCall) -> Callable[[], int]:
    """A call of a kernel on the GPU that returns its own time there in nanoseconds.

    A buffer larger than the L2 cache is overwritten before it. This takes some 40 us on the GPU, so that the kernel
    and both events have been enqueued before the first event happens, and the time of enqueueing them is not seen.
    """
    gpu = driver()
    first, last = gpu.new_event(timing=True), gpu.new_event(timing=True)
    large = _larger_than_l2()

    def run() -> int:
        gpu.enter()
        gpu.fill(int(large.ctypes.data), 0, large.nbytes, gpu.stream)
        gpu.record(first, gpu.stream)
        call.enqueue(gpu.stream)
        gpu.record(last, gpu.stream)
        return max(1, round(gpu.elapsed_ms(first, last) * 1e6))

    for event in (first, last):
        weakref.finalize(run, gpu.drop_event, event).atexit = False
    return run


@cache
def _larger_than_l2() -> Array:
    """One buffer for all timings of this process."""
    return empty_on(CUDA, (max(_LEAST_BYTES, _TIMES * driver().l2_bytes),), np.dtype(np.uint8))
