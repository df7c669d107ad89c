"""Copies between the host's memory and the GPU's, in one storage format."""

from __future__ import annotations

from collections.abc import Sequence

from collage.core.cuda_driver import driver
from collage.graph.dataflow import Array, TensorType
from collage.kernel.device_array import on_device
from collage.kernel.device_call import DeviceCall
from collage.kernel.kernel import Call, Kernel

__all__ = ["CopiesOnDevice", "CopyKernel"]


class CopiesOnDevice(DeviceCall):
    """Copies between arrays that are both on the GPU."""

    def __init__(self, pairs: Sequence[tuple[Array, Array]]) -> None:
        """``pairs`` are targets and sources, of the same sizes."""
        self._keep = pairs
        self._driver = driver()
        self._arguments = [
            (int(target.ctypes.data), int(source.ctypes.data), source.nbytes)
            for target, source in pairs
            if source.nbytes
        ]

    def enqueue(self, stream: int) -> None:
        for each in self._arguments:
            self._driver.within(*each, stream)


class CopyKernel(Kernel):
    """Copies a value of the type ``kind``, as it lies in memory, to or from the GPU."""

    own_threads = True  # the driver's, and its context

    def __init__(self, kind: TensorType, *, to_device: bool) -> None:
        self._kind = kind
        self._to_device = to_device

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """Bind the arrays as ``Kernel.bind`` says. Raises ValueError for others."""
        (source,), (target,) = inputs, outputs
        for array, there in ((source, not self._to_device), (target, self._to_device)):
            if TensorType(array.shape, array.dtype.name) != self._kind or on_device(array) != there:
                raise ValueError(f"a copy takes and gives {self._kind}, one of them on the GPU")
        return _Copy(source, target, to_device=self._to_device)


class _Copy(DeviceCall):
    with_host = True

    def __init__(self, source: Array, target: Array, *, to_device: bool) -> None:
        self._keep = source, target
        self._driver = driver()
        self._copy = self._driver.to_device if to_device else self._driver.to_host
        self._arguments = int(target.ctypes.data), int(source.ctypes.data), source.nbytes

    def enqueue(self, stream: int) -> None:
        if self._arguments[-1]:
            self._copy(*self._arguments, stream)
