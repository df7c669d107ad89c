"""An array that is given to a caller, and whose memory is taken again once nobody else has it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_empty


class GivenAway:
    """Arrays of one shape and dtype for the results of many calls, which their callers may keep.

    ``attach`` is called with each array that has memory of its own, before it is filled. While a caller has an earlier
    array, or a view of it, there is new memory; otherwise the same is filled again, which saves a copy and new pages.
    """

    def __init__(self, shape: Sequence[int], dtype: np.dtype[np.generic], attach: Callable[[Array], None]) -> None:
        """``attach`` may keep the array."""
        self._make: Callable[[], Array] = lambda: aligned_empty(shape, dtype)
        self._attach = attach
        self._renew()

    def prepare(self) -> None:
        """Attach an array that nobody else has."""
        if sys.getrefcount(self._owner) != self._idle:
            self._renew()

    def give(self) -> Array:
        """The array that was filled; it belongs to the caller."""
        result: Array = self._array.view()
        return result

    def _renew(self) -> None:
        self._idle = 0  # if the next lines fail, nobody knows what is attached, and ``prepare`` renews it
        array = self._make()
        self._attach(array)
        # All views of an array, and views of those, refer to the one that owns the memory.
        self._array, self._owner = array, array if array.base is None else array.base
        del array
        self._idle = sys.getrefcount(self._owner)
