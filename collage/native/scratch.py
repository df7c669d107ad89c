"""Scratch memory for primitives: one buffer for each thread of a team, which all kernels share.

A team's thread runs one task at a time, so what one kernel leaves there is nothing to the next. Kernels that may
run beside others of their team, on any of its threads, have buffers of their own.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from collage.runtime.buffers import aligned_bytes

_buffers: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}
_lock = threading.Lock()


def shared_scratch(team: int, thread: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """At least ``nbytes`` bytes for thread ``thread`` of the team of ``team``; whoever got less before keeps it."""
    with _lock:
        found = _buffers.get((team, thread))
        if found is None or found.nbytes < nbytes:
            found = _buffers[team, thread] = aligned_bytes(max(nbytes, 1 << 16))
        return found
