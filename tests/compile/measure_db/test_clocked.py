"""Kernels on the team take their own time, with their buffers' cache lines on all cores."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_empty
from collage.measure.worker.racing import clocked
from collage.native import NativeKernel, Step, Task, core_problem, touch_interleaved
from collage.native.library import address_of, core

pytestmark = pytest.mark.skipif(bool(core_problem()), reason=core_problem())


class Touches(NativeKernel):
    """Rewrites its input so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(threads=2)
        self.times = times

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        task = Task(address_of(core().collage_touch), a=inputs[0].ctypes.data, n=inputs[0].nbytes)
        return [Step((task,))] * self.times


def test_the_kernel_alone_is_timed() -> None:
    array = aligned_empty((1 << 20,), "uint8")
    array[:] = 7
    call = clocked(Touches(200), [array], [])
    start = time.monotonic_ns()
    inside = sum(call() for _ in range(5))
    assert 0 < inside < time.monotonic_ns() - start
    once = clocked(Touches(1), [array], [])
    assert min(call() for _ in range(9)) > 2 * min(once() for _ in range(9))
    assert np.all(array == 7)


def test_touching_covers_an_array_and_leaves_it_as_it_is() -> None:
    array = aligned_empty((300_001,), "uint8")
    array[:] = np.arange(300_001) % 251
    step = touch_interleaved(array)
    assert sum(task.n for task in step.tasks) == array.nbytes
    assert [task.a for task in step.tasks] == list(
        range(array.ctypes.data, array.ctypes.data + array.nbytes, step.tasks[0].n)
    )
    assert np.array_equal(array, np.arange(300_001) % 251)
