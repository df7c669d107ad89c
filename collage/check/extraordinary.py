"""Values that no guard lets through on the model's usual inputs, since they have NaN, infinities or huge numbers.

A mask of negative infinity is such a value, and so are the scores that it is put into. A kernel that is right on finite
numbers only is of no use where it reads one, and a scan of one would find something in every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from collage.check.store import ValueStore
from collage.graph.dataflow import Array, Graph
from collage.graph.magnitudes import ROOM, is_scanned
from collage.native.scan import are_all_ordinary


def extraordinary(graph: Graph, store: ValueStore) -> Iterator[int]:
    """The values of which ``store`` has such arrays, ascending.

    Numbers that a scan finds, and that are still within ``ROOM``, are not among them. What bounds a value may be known
    without a scan.
    """
    for value in graph.values:
        if graph.is_constant(value.id) or not is_scanned(value.type.dtype) or value.id not in store:
            continue
        array = store.load(value.id, value.type)
        if not are_all_ordinary([array]) and not _has_room(array):
            yield value.id


def _has_room(array: Array) -> bool:
    """Whether an array is of floats whose magnitudes are at most ``ROOM``."""
    if array.dtype.kind in "iu":
        return False
    with np.errstate(invalid="ignore"):
        wide: Any = array if array.dtype.kind == "c" else array.astype(np.float64)
        return bool(np.abs(wide).max(initial=0.0) <= ROOM)
