"""Scratch memory for primitives: one buffer for each thread of a team, which all kernels share.

A team's thread runs one task at a time, so what one kernel leaves there is nothing to the next. Kernels that may
run beside others of their team, on any of its threads, have buffers of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import numpy.typing as npt

from collage.runtime.buffers import aligned_bytes

_buffers: dict[tuple[int, int, int], npt.NDArray[np.uint8]] = {}
_stream: ContextVar[int] = ContextVar("stream", default=0)
_lock = threading.Lock()


@contextmanager
def on_stream(stream: int) -> Iterator[None]:
    """Kernels bound in here run on that stream only, beside those of other streams."""
    before = _stream.set(stream)
    try:
        yield
    finally:
        _stream.reset(before)


def shared_scratch(team: int, thread: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """At least ``nbytes`` bytes for thread ``thread`` of the team of ``team``; whoever got less before keeps it."""
    key = team, thread, _stream.get()
    with _lock:
        found = _buffers.get(key)
        if found is None or found.nbytes < nbytes:
            found = _buffers[key] = aligned_bytes(max(nbytes, 1 << 16))
        return found
