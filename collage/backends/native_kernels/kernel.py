"""Binding a packed kernel to buffers: one C function, and shares that differ by number."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collage.backends.native_kernels.limits import Limits, check_shares
from collage.core.typed import typed
from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_bytes
from collage.native import NativeKernel, Step, Task, in_sequence
from collage.native.kernel_library import kernel_function
from collage.native.packed import Packed
from collage.native.reach import check_floats, picked
from collage.native.scratch import shared_scratch
from collage.native.structure import structure

_PIECE_FLOP = 100e6
"""The work of a piece, which takes a core about 0.5 ms."""
_FEWEST_CHUNKS = 4
"""The fewest chunks of a piece, whose last chunk may be small."""


def pieces_of_share(flop: float, chunks: int) -> int:
    """The number of tasks that a thread's share is cut into, which has that much work in so many chunks.

    A thread runs them in turn. Where others use the cores, too, the system may stop a thread for long. Then another
    thread goes on with its share, but only from the next task on.
    """
    return max(1, min(round(flop / _PIECE_FLOP), chunks // _FEWEST_CHUNKS))


def kernel_task(function: int, shape: ctypes.Structure, arrays: Sequence[Array | None], number: int) -> Task:
    """The call ``function(&shape, &buffers, number)``, whose buffers are the addresses of the arrays."""
    buffers = (ctypes.c_void_p * len(arrays))(*(None if a is None else a.ctypes.data for a in arrays))
    keep = (shape, buffers, arrays)
    return Task(function, ctypes.addressof(shape), ctypes.addressof(buffers), number, 0, keep)


@dataclass(frozen=True)
class CKernel:
    """A kernel's C function, and the C struct of its numbers.

    - ``limits``: how far the function goes in its buffers.
    - ``arrays``: the names of the kernel's own arrays. One that an artifact lacks becomes NULL.
    - ``lists``: numbers that become arrays of integers, before the other arrays.
    - ``residual``: whether it can add one.
    - ``scratch_bytes``: the size of the memory that a share works in.
    """

    function: str
    shape: type[ctypes.Structure]
    limits: Limits
    arrays: tuple[str, ...]
    lists: tuple[str, ...] = ()
    residual: bool = True
    scratch_bytes: Callable[[Mapping[str, Any]], int] = lambda numbers: 0


class SharedKernel(NativeKernel):
    """A kernel whose share i is the call ``function(&shape, &buffers, i)``. A thread has ``pieces`` shares.

    The C struct of buffers is pointers in this order: the data, other inputs (``also_read``), the kernel's own arrays,
    the residual or NULL, the result, and scratch memory. The numbers ``data`` and ``residual`` say which of the
    subgraph's inputs these are, and ``shares`` how many there are.
    """

    def __init__(self, kernel: CKernel, packed: Packed, threads: int) -> None:
        """Raises ValueError if numbers and arrays do not fit each other by the kernel's limits."""
        super().__init__(threads)
        numbers = self._numbers = packed.numbers
        self._function = kernel_function(kernel.function)
        self._shape = structure(kernel.shape, numbers)
        check_shares(numbers, threads)
        self._needs = kernel.limits(numbers, packed.arrays)
        self._takes_residual = kernel.residual
        typed(list[int], [numbers["data"], *([numbers["residual"] or 0] if kernel.residual else [])])
        self._pieces: int = numbers.get("pieces", 1)
        self._constants: list[npt.NDArray[Any] | None] = [
            *(np.array(typed(list[int], numbers[name]), np.int64) for name in kernel.lists),
            *(packed.arrays.get(name) for name in kernel.arrays),
        ]
        self._scratch_bytes = kernel.scratch_bytes(numbers)

    def also_read(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Inputs that are read besides the data, and no residual. There are none unless a kernel has some."""
        return ()

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """One step with a task for each thread that takes part. Raises ValueError if buffers are too small."""
        numbers = self._numbers
        data, result = picked("input", inputs, numbers["data"]), picked("output", outputs, 0)
        check_floats("the data", data, self._needs.data)
        check_floats("the result", result, self._needs.result)
        arrays: list[Array | None] = [data, *self.also_read(inputs), *self._constants]
        if self._takes_residual:
            residual = None if numbers["residual"] is None else picked("input", inputs, numbers["residual"])
            if residual is not None:
                check_floats("the residual", residual, self._needs.result)
            arrays.append(residual)
        arrays.append(result)
        pieces, tasks = self._pieces, []
        for thread in range(numbers["shares"] // pieces):
            mine = [*arrays, *([self._scratch(thread)] if self._scratch_bytes else [])]
            shares = range(thread * pieces, (thread + 1) * pieces)
            tasks.append(in_sequence([kernel_task(self._function, self._shape, mine, i) for i in shares]))
        return [Step(tuple(tasks))]

    def _scratch(self, thread: int) -> npt.NDArray[np.uint8]:
        """The thread's scratch memory, or memory of the kernel's own if it may run beside other kernels."""
        if self._numbers["shares"] == self.threads * self._pieces:
            return shared_scratch(self.threads, thread, self._scratch_bytes)
        return aligned_bytes(self._scratch_bytes)
