"""Running a program: kernels bound ahead of time to an arena, a run is a list of calls.

Kernels that follow each other on Collage's team become one call, which walks them without Python.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from collage.backends.base import Call, Kernel
from collage.graph.dataflow import Array, np_dtype
from collage.native import LaunchList, NativeKernel, Step, beside_team, note_time, team_of
from collage.runtime.buffers import aligned_empty
from collage.schedule.program import Program


class Executor:
    """A program with its kernels, bound to one arena. One run at a time; callers queue at a lock."""

    def __init__(self, program: Program, kernels: Sequence[Kernel], constants: Mapping[int, Array]) -> None:
        """``kernels`` are those of ``program.launches``, in order; ``constants`` outputs that are constants."""
        self.program = program
        self._arena = aligned_empty((max(program.memory.nbytes, 1),), "uint8")
        self._constants = dict(constants)
        self._arrays: dict[int, Array] = {}
        self._kernels = list(kernels)  # a bound call may rely on its kernel staying alive
        self.calls = self.bind()
        """The run list."""
        self._inputs = [self.array(p.value) for p in program.inputs]
        self._outputs = [self._output(p.value) for p in program.outputs]
        self._lock = threading.Lock()

    def bind(self, clock: Array | None = None) -> list[Call]:
        """The kernels as calls, those on the team joined.

        With a ``clock`` (int64, an element for each launch) the calls also write the time after each launch, in
        nanoseconds of ``time.monotonic_ns``.
        """
        calls: list[Call] = []
        steps: list[Step] = []
        threads = max((k.threads for k in self._kernels if isinstance(k, NativeKernel)), default=0)

        def flush() -> None:
            if steps:
                calls.append(LaunchList(team_of(threads), steps))
                steps.clear()

        for number, (region, kernel) in enumerate(zip(self.program.launches, self._kernels, strict=True)):
            inputs = [self.array(v) for v in region.inputs]
            outputs = [self.array(v) for v in region.outputs]
            if isinstance(kernel, NativeKernel):
                steps += kernel.steps(inputs, outputs)
                if clock is not None:
                    steps.append(note_time(int(clock[number:].ctypes.data)))
            else:
                flush()
                call = kernel.bind(inputs, outputs)
                if threads:
                    call = beside_team(call, threads)
                calls.append(call if clock is None else _timed(call, clock[number:]))
        flush()
        return calls

    def array(self, value: int) -> Array:
        """The value's buffer in the arena."""
        if value not in self._arrays:
            kind = self.program.types[value]
            offset = self.program.memory.offsets[self.program.aliases.get(value, value)]
            raw = self._arena[offset : offset + kind.nbytes]
            self._arrays[value] = raw.view(np_dtype(kind.dtype)).reshape(kind.shape)
        return self._arrays[value]

    def _output(self, value: int) -> Array:
        return self._constants[value] if value in self._constants else self.array(value)

    def set_inputs(self, inputs: Sequence[Array]) -> None:
        """Copy the inputs, in order, into their buffers."""
        for buffer, array in zip(self._inputs, inputs, strict=True):
            np.copyto(buffer, array)

    def launch(self) -> None:
        """Run the kernels on what the input buffers hold; these may be overwritten after their last use."""
        for call in self.calls:
            call()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Outputs, in order, as arrays of the caller's own."""
        with self._lock:
            self.set_inputs(inputs)
            self.launch()
            return [np.array(buffer, copy=True, order="C") for buffer in self._outputs]


def _timed(call: Call, clock: Array) -> Call:
    def run() -> None:
        call()
        clock[0] = time.monotonic_ns()

    return run
