"""Files in memory, mapped read-only. No descriptor stays open for them: a process may have a thousand at most."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import cache
from pathlib import Path

_FAILED = ctypes.c_void_p(-1).value


def mapped_file(path: Path) -> ctypes.Array[ctypes.c_uint8]:
    """The bytes of a file. They stay as long as the result does, also where the file is removed.

    Nobody may write to them, though nothing says so: that would end the process. Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if not size:
            return (ctypes.c_uint8 * 0)()
        address = _libc().mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(fd)
    found = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(found, _libc().munmap, address, size).atexit = False
    return found


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
