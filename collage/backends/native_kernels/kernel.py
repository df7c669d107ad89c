"""Binding a packed kernel to buffers: one C function, and shares that differ by number."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collage.graph.dataflow import Array
from collage.native import NativeKernel, Step, Task
from collage.native.kernel_library import kernel_function
from collage.native.packed import Packed
from collage.native.scratch import shared_scratch
from collage.native.structure import structure
from collage.runtime.buffers import aligned_bytes


class SharedKernel(NativeKernel):
    """Share i is the call ``function(&shape, &buffers, i)``.

    The kernel's C struct of buffers is pointers in this order: the data, ``constants`` (arrays of the kernel's
    own), the residual or NULL where ``packed`` has a number of that name, the result, and scratch memory of the
    share's own where it needs some (``scratch_bytes``). The numbers ``data`` and ``residual`` say which of the
    subgraph's inputs these are, and ``shares`` how many there are.
    """

    def __init__(
        self,
        function: str,
        shape: type[ctypes.Structure],
        packed: Packed,
        threads: int,
        *,
        constants: Sequence[npt.NDArray[Any]],
        scratch_bytes: int = 0,
    ) -> None:
        super().__init__(threads)
        self._function = kernel_function(function)
        self._shape = structure(shape, packed.numbers)
        self._numbers = packed.numbers
        self._constants = tuple(constants)
        self._scratch_bytes = scratch_bytes

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """One step with a task for each share."""
        numbers = self._numbers
        arrays: list[Array | None] = [inputs[numbers["data"]], *self._constants]
        if "residual" in numbers:
            arrays.append(None if numbers["residual"] is None else inputs[numbers["residual"]])
        arrays.append(outputs[0])
        return [Step(tuple(self._task(share, arrays) for share in range(numbers["shares"])))]

    def _task(self, share: int, arrays: Sequence[Array | None]) -> Task:
        mine = [*arrays, *([self._scratch(share)] if self._scratch_bytes else [])]
        buffers = (ctypes.c_void_p * len(mine))(*(None if a is None else a.ctypes.data for a in mine))
        keep = (self._shape, buffers, mine)
        return Task(self._function, ctypes.addressof(self._shape), ctypes.addressof(buffers), share, 0, keep)

    def _scratch(self, share: int) -> npt.NDArray[np.uint8]:
        """Memory of its own for a share that may run beside other kernels, else that of its thread."""
        if self._numbers["shares"] == self.threads:
            return shared_scratch(self.threads, share, self._scratch_bytes)
        return aligned_bytes(self._scratch_bytes)
