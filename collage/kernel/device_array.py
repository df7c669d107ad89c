"""Arrays in the memory of a GPU: they have a shape, a dtype and an address, and the process cannot read them.

A kernel on the device takes ``array.ctypes.data``. What numpy does without looking at the elements works: slices, views
and new shapes. Whatever would read or write elements raises an error here, and would crash otherwise. ``to_host``
and ``put`` copy.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from collage.core.cuda_driver import driver
from collage.graph.dataflow import Array, np_dtype
from collage.graph.storage import CUDA
from collage.kernel.buffers import aligned_empty, as_bytes
from collage.kernel.buffers import poison as poison_here

__all__ = [
    "DeviceArray",
    "copy_on",
    "empty_on",
    "lock_pages",
    "on_device",
    "poison",
    "put",
    "to_host",
]

_NAN_BYTE, _ODD_BYTE = 0xFF, 0xA5
"""Floats all of whose bytes are 0xFF are NaN, in every format."""
_READS = ("all", "any", "argmax", "argmin", "astype", "copy", "dot", "item", "max", "mean", "min", "prod")


class DeviceArray(np.ndarray[Any, Any]):
    """An array in the GPU's memory. Views of it are such arrays, too, and keep the memory alive."""

    def __array_ufunc__(self, *_: Any, **__: Any) -> NoReturn:
        raise _unreadable()

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is not np.may_share_memory:
            raise _unreadable()
        one, other = (each.view(np.ndarray) if isinstance(each, DeviceArray) else each for each in args[:2])
        return np.may_share_memory(one, other)

    def __getitem__(self, key: Any) -> Any:
        if not all(isinstance(each, slice) for each in (key if isinstance(key, tuple) else (key,))):
            raise _unreadable()
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise _unreadable()

    def fill(self, value: Any) -> NoReturn:
        """Refuse, since nothing here writes to the elements. Raises TypeError."""
        raise _unreadable()

    def tobytes(self, order: Any = "C") -> NoReturn:
        """Refuse, since nothing here reads the elements. Raises TypeError."""
        raise _unreadable()

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} on {CUDA}>"

    __str__ = __repr__


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    raise _unreadable()


for _name in _READS:
    setattr(DeviceArray, _name, _refuse)


def _unreadable() -> TypeError:
    return TypeError(f"the elements of an array on {CUDA} cannot be read here: copy it with to_host")


def empty_on(device: str, shape: Sequence[int], dtype: str | np.dtype[Any]) -> Array:
    """An uninitialised C-contiguous array on the device, aligned as kernels need it.

    Devices of plug-ins are in memory that the process can address. Raises MemoryError, on a GPU with what is free
    there.
    """
    if device != CUDA:
        return aligned_empty(shape, dtype)
    found = np_dtype(dtype) if isinstance(dtype, str) else dtype
    count = 1
    for extent in shape:
        count *= extent
    nbytes = max(1, count * found.itemsize)
    gpu = driver()
    gpu.enter()
    address = gpu.allocate(nbytes)
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(memory, gpu.free, address).atexit = False
    made: Array = DeviceArray(tuple(shape), found, memory)
    return made


def copy_on(device: str, values: Array) -> Array:
    """A copy of values of the host on the device. Raises MemoryError as ``empty_on``."""
    found = empty_on(device, values.shape, values.dtype)
    put(found, values)
    return found


def on_device(array: Array) -> bool:
    """Whether the array is in a GPU's memory."""
    return isinstance(array, DeviceArray)


def to_host(array: Array) -> Array:
    """The array itself if it is on the host, and a copy of it there if it is on a GPU."""
    if not on_device(array):
        return array
    found = aligned_empty(array.shape, array.dtype)
    gpu = driver()
    gpu.enter()
    if array.nbytes:
        with gpu.turn:
            gpu.to_host(found.ctypes.data, array.ctypes.data, array.nbytes, gpu.stream)
            gpu.synchronize(gpu.stream)
    return found


def put(target: Array, values: Array) -> None:
    """Copy values of the host, of the same shape, into an array on the host or on a GPU."""
    if not on_device(target):
        np.copyto(target, values)
        return
    source = np.ascontiguousarray(np.broadcast_to(values, target.shape), target.dtype)
    gpu = driver()
    gpu.enter()
    if source.nbytes:
        with gpu.turn:
            gpu.to_device(target.ctypes.data, source.ctypes.data, source.nbytes, gpu.stream)
            gpu.synchronize(gpu.stream)


def poison(array: Array) -> None:
    """Fill an array with what no kernel computes by accident; booleans on a GPU become true."""
    if not on_device(array):
        poison_here(array)
        return
    gpu = driver()
    gpu.enter()
    inexact = array.dtype.kind in "fc" or "float" in array.dtype.name
    byte = 1 if array.dtype.kind == "b" else _NAN_BYTE if inexact else _ODD_BYTE
    if array.nbytes:
        with gpu.turn:
            gpu.fill(array.ctypes.data, byte, array.nbytes, gpu.stream)
            gpu.synchronize(gpu.stream)


def lock_pages(array: Array) -> None:
    """Lock the host's memory of the array for as long as the array lives, so that copies to a GPU are fast."""
    gpu = driver()
    gpu.enter()
    raw = as_bytes(array)
    address = int(raw.ctypes.data)
    if raw.nbytes and gpu.lock_pages(address, raw.nbytes):
        weakref.finalize(array, gpu.unlock_pages, address).atexit = False
