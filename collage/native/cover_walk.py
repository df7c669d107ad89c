"""The walk of the search over covers, compiled: what ``search/dp.py`` does in Python, in a small part of the time.

Here are plain numbers only (see search/cover.h), so that nothing of a search is known.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from collage.native.library import built

Numbers: TypeAlias = npt.NDArray[np.void] | npt.NDArray[np.int64] | npt.NDArray[np.uint64]

OPTION = np.dtype(
    [
        ("weight", np.uint64, 2),
        *((name, np.int64) for name in ("mask", "reaches", "port")),
        *((name, np.int32) for name in ("mask_words", "reach_words", "reads", "writes", "has_ports", "unused")),
    ]
)
PORT = np.dtype([("value", np.int32), ("storage", np.int32)])
VALUE = np.dtype([("costs", np.int64), *((name, np.int32) for name in ("writer", "last", "storages", "is_output"))])
NEVER = 1 << 120
"""The cost of a layout transform that cannot be made. Covers have to weigh less."""
MOST_STORAGES = 63
"""The most storages of a value."""


@dataclass(frozen=True)
class Cover:
    """The arrays of ``collage_cover``: of OPTION, PORT and VALUE, and of 64-bit words."""

    first: Numbers
    options: Numbers
    words: Numbers
    ports: Numbers
    values: Numbers
    costs: Numbers

    @property
    def positions(self) -> int:
        """The number of positions."""
        return len(self.first) - 1


class _Cover(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("first", "options", "words", "ports", "values", "costs")),
        *((name, ctypes.c_int64) for name in ("positions", "most_states")),
    )


def can_walk() -> bool:
    """Whether the compiled walk is there. It is built when Collage is installed from source, as the core is."""
    return _library() is not None


def walk(cover: Cover, most_states: int, check: Callable[[], None]) -> tuple[list[int] | None, int, bool]:
    """The options of the cheapest cover, the last one first (or None), the last position reached, and if it is exact.

    Raises MemoryError, and what ``check`` raises, which is called at each position.
    """
    library = _library()
    assert library is not None
    arrays = (cover.first, cover.options, cover.words, cover.ports, cover.values, cover.costs)
    problem = _Cover(*(each.ctypes.data for each in arrays), cover.positions, most_states)
    handle = library.collage_walk_begin(ctypes.byref(problem))
    try:
        done = 0 if handle else -1
        while not done:
            check()
            done = library.collage_walk_on(handle)
        if done < 0:
            raise MemoryError("there is not enough memory for the search")
        options = (ctypes.c_int64 * cover.positions)()
        exact, reached = ctypes.c_int(), ctypes.c_int64()
        count = library.collage_walk_found(handle, options, cover.positions, ctypes.byref(exact), ctypes.byref(reached))
    finally:
        if handle:
            library.collage_walk_end(handle)
    return (None if count < 0 else options[:count]), reached.value, bool(exact.value)


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(built("_search")))
    except OSError:
        return None
    pointer, wide = ctypes.c_void_p, ctypes.c_int64
    library.collage_walk_begin.restype = pointer
    library.collage_walk_begin.argtypes = [pointer]
    library.collage_walk_on.argtypes = [pointer]
    library.collage_walk_found.restype = wide
    library.collage_walk_found.argtypes = [pointer, pointer, wide, pointer, pointer]
    library.collage_walk_end.restype = None
    library.collage_walk_end.argtypes = [pointer]
    return library
