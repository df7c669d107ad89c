"""Memory between pages that nobody may touch: a kernel that reads or writes beside its buffers dies at once.

Without this, what it touches belongs to another array most of the time, and nothing shows.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 64
_NOTHING = 0
_MOST_BYTES = 1 << 28
"""Larger blocks are allocated as usual, since most of their pages are never used."""


def guarded_bytes(size: int) -> npt.NDArray[np.uint8]:
    """``size`` bytes from a 64-byte boundary on, which end at most 63 bytes before a protected page."""
    room = max(-(-size // _ALIGNMENT), 1) * _ALIGNMENT
    pages = -(-room // mmap.PAGESIZE) * mmap.PAGESIZE
    block = mmap.mmap(-1, pages + 2 * mmap.PAGESIZE)
    whole = np.frombuffer(block, np.uint8)
    for at in (0, mmap.PAGESIZE + pages):
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.ctypes.data + at), mmap.PAGESIZE, _NOTHING):
            raise OSError("mprotect failed")
    start = mmap.PAGESIZE + pages - room
    return whole[start : start + size]


def install() -> None:
    """Guard all of Collage's buffers from now on. Call it before anything else of Collage is imported."""
    from collage.kernel import buffers

    usual = buffers.aligned_bytes

    def aligned_bytes(size: int) -> npt.NDArray[np.uint8]:
        return guarded_bytes(size) if 0 <= size <= _MOST_BYTES else usual(size)

    buffers.aligned_bytes = aligned_bytes
    from collage.module.archive import MappedArchive

    get = MappedArchive.get

    def guarded_get(self: MappedArchive, name: str, **options: Any) -> memoryview:
        found = get(self, name, **options)
        copy = aligned_bytes(len(found))
        copy[:] = np.frombuffer(found, np.uint8)
        copy.flags.writeable = False
        return copy.data

    MappedArchive.get = guarded_get  # type: ignore[method-assign]


def buffers_of(sizes: Mapping[int, int]) -> dict[int, npt.NDArray[np.uint8]]:
    """A guarded block for each value, by id."""
    return {value: guarded_bytes(nbytes) for value, nbytes in sizes.items()}
