"""Images in memory, and the functions that their code calls."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from collage.backends.tvm_codegen.image import Image
from collage.core.cpuinfo import compiled_for
from collage.native.library import address_of, core

LAUNCH = "TVMBackendParallelLaunch"
"""What code calls for a parallel loop."""
_READ, _EXECUTE = 1, 4
_OURS: Mapping[str, str] = {
    LAUNCH: "collage_parallel_launch",
    "TVMBackendAllocWorkspace": "collage_take_workspace",
    "TVMBackendFreeWorkspace": "collage_give_workspace",
    "TVMFFIErrorSetRaisedFromCStrParts": "collage_nothing",
}
"""Functions of TVM's runtime, and those of the native core that do the same. What a kernel's code finds wrong with its
arguments is known before it is called, so that nobody reads the text of the error."""
_LIBRARIES = ("libm.so.6", "libc.so.6")


@dataclass(frozen=True, eq=False)
class Mapped:
    """An image in memory, which is there as long as this object lives, and the addresses of its functions."""

    memory: mmap.mmap
    addresses: Mapping[str, int]


@cache
def instruction_sets() -> frozenset[str]:
    """The instruction sets of this CPU that compiled code may use."""
    try:
        return compiled_for(Path("/proc/cpuinfo").read_text())
    except OSError:
        return frozenset()


def is_known(name: str) -> bool:
    """Whether an image may call the function: one of C's library, or one that the native core has."""
    return name in _OURS or bool(_of_c(name))


def map_image(image: Image) -> Mapped:
    """The image in memory. It needs the native core. Raises OSError, and ValueError for an unknown function."""
    memory = mmap.mmap(-1, image.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[: len(image.content)] = image.content
    held = ctypes.c_char.from_buffer(memory)
    base = ctypes.addressof(held)
    del held  # else the memory could never be closed
    for name, at in image.imports:
        memory[at : at + 8] = struct.pack("<Q", _address(name))
    for at in image.moved:
        (offset,) = struct.unpack("<Q", memory[at : at + 8])
        memory[at : at + 8] = struct.pack("<Q", base + offset)
    if _protect()(base, image.writable, _READ | _EXECUTE):
        error = ctypes.get_errno()
        raise OSError(error, "memory cannot be made executable")
    return Mapped(memory, {name: base + offset for name, offset in image.functions.items()})


def _address(name: str) -> int:
    if name in _OURS:
        return address_of(getattr(core(), _OURS[name]))
    found = _of_c(name)
    if not found:
        raise ValueError(f"there is no function {name} here")
    return found


@cache
def _of_c(name: str) -> int:
    """The address of a function of C's library; 0 if it has none of that name."""
    for library in _LIBRARIES:
        try:
            return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value or 0
        except (OSError, AttributeError):
            continue
    return 0


@cache
def _protect() -> Callable[[int, int, int], int]:
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return protect
