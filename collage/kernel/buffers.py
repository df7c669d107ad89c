"""Buffers that kernels are bound to: dense arrays that start at 64-byte boundaries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from collage.graph.dataflow import Array, TensorType, np_dtype

ALIGNMENT = 64
"""The boundary in bytes. TVM's kernels crash with a smaller one, and a cache line is as long."""


def aligned_empty(shape: Sequence[int], dtype: str | np.dtype[np.generic]) -> Array:
    """An uninitialised C-contiguous array of that shape (elements) that starts at a 64-byte boundary."""
    found = np_dtype(dtype) if isinstance(dtype, str) else dtype
    count = 1
    for extent in shape:
        count *= extent
    result: Array = aligned_bytes(count * found.itemsize).view(found).reshape(tuple(shape))
    return result


def aligned_bytes(size: int) -> npt.NDArray[np.uint8]:
    """``size`` uninitialised bytes that start at a 64-byte boundary."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % ALIGNMENT
    return memory[skip : skip + size]


def is_aligned(array: Array) -> bool:
    """Whether kernels can be bound to the array: it starts at a 64-byte boundary, or has no elements."""
    return not array.size or array.ctypes.data % ALIGNMENT == 0


def aligned_array(found: TensorType) -> Array:
    """An uninitialised aligned array of that type."""
    return aligned_empty(found.shape, found.dtype)


def aligned_copy(array: Array) -> Array:
    """An aligned, writable copy."""
    result = aligned_empty(array.shape, array.dtype)
    result[...] = array
    return result


def poison(array: Array) -> None:
    """Fill the array with what no kernel computes by accident, so that elements left unwritten show.

    Floats become NaN, booleans alternate (both bytes stay legal), all others get the byte 0xA5.
    """
    if array.dtype.kind == "b":
        flat = array.reshape(-1)
        flat[0::2] = True
        flat[1::2] = False
    elif array.dtype.kind in "fc" or "float" in array.dtype.name:
        array.fill(np.nan)
    else:
        as_bytes(array).fill(0xA5)


def as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    """The bytes of a C-contiguous array, without a copy; two arrays are identical when these are equal."""
    return array.reshape(-1).view(np.uint8)
