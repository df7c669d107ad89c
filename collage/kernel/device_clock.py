"""Timing of kernels on a GPU: by events on its stream, with an L2 cache that holds none of their values."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from collage.core.cuda_driver import CudaError, driver, lost_context
from collage.core.nvml import Clocks, clocks
from collage.graph.dataflow import Array
from collage.graph.storage import CUDA
from collage.kernel.device_array import empty_on
from collage.kernel.device_call import DeviceCall

__all__ = ["clocks_at_work", "device_clocked"]

_LEAST_BYTES = 1 << 20
_TIMES = 2
"""So many times the L2 cache is overwritten, which does not forget strictly by age."""
_FILLS = 50
"""So many fills, of some 40 us each, keep the GPU at work while its clocks are read."""


def device_clocked(call: DeviceCall) -> Callable[[], int]:
    """A call of a kernel on the GPU that returns its own time there in nanoseconds.

    A buffer larger than the L2 cache is overwritten before it. This takes some 40 us on the GPU, so that the kernel
    and both events have been enqueued before the first event happens, and the time of enqueueing them is not seen. Many
    kernels take longer to enqueue, so that they are replayed as a graph, as they are in a module.
    """
    gpu = driver()
    enqueue = _replaying(call) if call.many and call.capturable and not call.with_host else call.enqueue
    first, last = gpu.new_event(timing=True), gpu.new_event(timing=True)
    large = _larger_than_l2()

    def run() -> int:
        gpu.enter()
        with gpu.turn:
            gpu.fill(int(large.ctypes.data), 0, large.nbytes, gpu.stream)
            gpu.record(first, gpu.stream)
            enqueue(gpu.stream)
            gpu.record(last, gpu.stream)
            return max(1, round(gpu.elapsed_ms(first, last) * 1e6))

    for event in (first, last):
        weakref.finalize(run, gpu.drop_event, event).atexit = False
    return run


def clocks_at_work(times: int = 1) -> Clocks | None:
    """The GPU's clocks while it fills memory, some 2 ms or ``times`` as long: without work it lowers them.

    None if they are not known.
    """
    gpu = driver()
    gpu.enter()
    large = _larger_than_l2()
    for left in reversed(range(times)):
        with gpu.turn:
            for _ in range(_FILLS):
                gpu.fill(int(large.ctypes.data), 0, large.nbytes, gpu.stream)
            found = None if left else clocks()
            gpu.synchronize(gpu.stream)
    return found


@cache
def _larger_than_l2() -> Array:
    """One buffer for all timings of this process."""
    return empty_on(CUDA, (max(_LEAST_BYTES, _TIMES * driver().l2_bytes),), np.dtype(np.uint8))


def _replaying(call: DeviceCall) -> Callable[[int], None]:
    """What enqueues the call as a graph, or launch by launch if the driver refuses to capture it."""
    gpu = driver()
    gpu.enter()
    with gpu.turn:
        call.enqueue(gpu.stream)  # libraries load what they need in the first run, which is none of a graph's
        gpu.synchronize(gpu.stream)
        try:
            graph = gpu.captured(gpu.stream, partial(call.enqueue, gpu.stream))
        except CudaError:
            if lost_context():
                raise
            return call.enqueue

    def replay(stream: int, keep: DeviceCall = call) -> None:
        """Launch the graph, whose kernels read what the call keeps."""
        gpu.launch_graph(graph, stream)

    weakref.finalize(replay, gpu.drop_graph, graph).atexit = False
    return replay
