"""Scratch memory for primitives: one buffer for each thread of a team, which all kernels share.

A team's thread runs one task at a time, and no kernel needs what an earlier one has left in the buffer. Kernels that
may run at the same time as others, on any threads, have buffers of their own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from collage.kernel.buffers import aligned_bytes

_buffers: WeakValueDictionary[tuple[int, int, Hashable], npt.NDArray[np.uint8]] = WeakValueDictionary()
_group: ContextVar[Hashable] = ContextVar("group", default=None)
_lock = threading.Lock()


@contextmanager
def sharing_scratch(group: Hashable) -> Iterator[None]:
    """A context in which bound kernels share scratch memory, and none with the kernels of other groups.

    Kernels of one group never run at the same time on the same thread; kernels of different groups may.
    """
    before = _group.set(group)
    try:
        yield
    finally:
        _group.reset(before)


def shared_scratch(team: int, thread: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """At least ``nbytes`` bytes for thread ``thread`` of the team of ``team`` threads.

    Numbers from ``team`` on are of second buffers, for what a kernel hands on from one of its steps to the next.

    Kernels that got a smaller buffer before keep it. A buffer is freed when no kernel holds it any more.
    """
    key = team, thread, _group.get()
    with _lock:
        found = _buffers.get(key)
        if found is None or found.nbytes < nbytes:
            found = _buffers[key] = aligned_bytes(max(nbytes, 1 << 16))
        return found


def _renew_lock() -> None:
    """Make a new lock in a forked child, since another thread of the parent may have held the old one."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
