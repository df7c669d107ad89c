"""Copies between the host's memory and the GPU's, and to other formats and dtypes on the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from collage.backends.cuda_kernels.rearrange import rearranged
from collage.core.cuda_driver import driver
from collage.graph.dataflow import Array, TensorType
from collage.graph.formats import ChannelsLast, Narrow, StorageFormat
from collage.graph.storage import CUDA, Storage, stored_type
from collage.kernel.device_array import empty_on, on_device
from collage.kernel.device_call import DeviceCall
from collage.kernel.kernel import Call, Kernel
from collage.kernel.transform import LayoutTransform

__all__ = ["CopiesOnDevice", "TransformKernel"]


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


class TransformKernel(Kernel):
    """A layout transform to the GPU, from it, or there. What changes the format or the dtype runs on the GPU."""

    own_threads = True  # the driver's, and its context

    def __init__(self, transform: LayoutTransform) -> None:
        """Raises ValueError where the value cannot be stored so."""
        self._ends = transform.source, transform.target
        self._kinds = [stored_type(transform.kind, each) for each in self._ends]
        self._matrices = _matrices(transform)
        self._same = self._kinds[0].dtype == self._kinds[1].dtype and self._matrices is None

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """Bind the arrays as ``Kernel.bind`` says. Raises ValueError for others."""
        (source,), (target,) = inputs, outputs
        for array, kind, storage in zip((source, target), self._kinds, self._ends, strict=True):
            there = storage.device == CUDA
            if TensorType(array.shape, array.dtype.name) != kind or on_device(array) != there:
                raise ValueError(f"a transform takes or gives {kind} in {storage}")
        if self._same:
            return _Copy(source, target) if not _both(source, target) else CopiesOnDevice([(target, source)])
        calls: list[DeviceCall] = []
        taken, given = source, target
        if not on_device(source):
            taken = empty_on(CUDA, source.shape, source.dtype)
            calls.append(_Copy(source, taken))
        if not on_device(target):
            given = empty_on(CUDA, target.shape, target.dtype)
        if source.size:
            calls.append(rearranged(taken, given, self._matrices))
        if not on_device(target):
            calls.append(_Copy(given, target))
        return _InTurn(calls)


def _both(source: Array, target: Array) -> bool:
    return on_device(source) and on_device(target)


def _is_last(storage: Storage) -> bool:
    found: StorageFormat = storage.format
    return isinstance(found.wide if isinstance(found, Narrow) else found, ChannelsLast)


def _matrices(transform: LayoutTransform) -> tuple[int, int, int] | None:
    """How many matrices are transposed, and their rows and columns; None where the order stays."""
    before, after = _is_last(transform.source), _is_last(transform.target)
    if before == after:
        return None
    batch, channels, *space = transform.kind.shape
    return (batch, math.prod(space), channels) if before else (batch, channels, math.prod(space))


class _InTurn(DeviceCall):
    def __init__(self, calls: Sequence[DeviceCall]) -> None:
        self._calls = calls
        self.with_host = any(each.with_host for each in calls)

    def enqueue(self, stream: int) -> None:
        for each in self._calls:
            each.enqueue(stream)


class _Copy(DeviceCall):
    with_host = True

    def __init__(self, source: Array, target: Array) -> None:
        """One of the two is on the GPU."""
        self._keep = source, target
        self._driver = driver()
        self._copy = self._driver.to_device if on_device(target) else self._driver.to_host
        self._arguments = int(target.ctypes.data), int(source.ctypes.data), source.nbytes

    def enqueue(self, stream: int) -> None:
        if self._arguments[-1]:
            self._copy(*self._arguments, stream)
