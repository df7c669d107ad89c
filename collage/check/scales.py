"""The scale that the error of each element of an array is told in: the largest magnitude in its slice.

Each element shares its scale with its neighbours: those in the same item and channel, row or column. One scale for a
whole tensor would be too coarse: where it holds boxes in pixels and scores, wrong scores would pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from collage.graph.dataflow import Array

_LEAST = 8
"""A scale is the largest of this many elements at least. The largest of fewer may be near zero by chance."""

_FLOOR = 1e-3
"""No scale is less than this part of the item's largest magnitude. With a tolerance of 1e-4 that is one unit in the
last place of the item's largest value in float32; sums that cancel are not right to more."""

_TINY = 2.0**20
"""No scale is less than this many times the least normal number. Denormals may be taken for zero, and one over them is
infinite."""


def scales(expected: Array, *, channels_first: bool = False) -> Any:
    """The scale that the error of each element is told in; it broadcasts to the shape of ``expected``.

    It is the largest magnitude in the element's slice: the row and the column of a matrix; in tensors of three and more
    dimensions what has the same first and second index, and what has the same first and last one. The smaller one
    counts, but never less than a thousandth of the largest magnitude in the same item (the first index). With
    ``channels_first`` (the outputs of convolutions) the last index is a pixel's, and has no scale of its own.

    Slices of fewer than 8 elements have the scale of the next larger one. All of a vector has one scale, and where
    everything is zero that is 1. Infinities and NaN do not count, and denormals are next to nothing.
    """
    found = magnitudes(expected)
    everything = found.max(initial=0.0, keepdims=True)
    item, sliced = slice_maxima(found, everything, channels_first)
    scale = np.maximum(sliced, _FLOOR * item)
    scale = np.where(scale > 0, scale, everything)
    least = _TINY * float(np.finfo(found.dtype).tiny) if found.dtype.kind == "f" else 0.0
    return np.where(scale > 0, np.maximum(scale, least), 1.0)


def magnitudes(array: Array) -> Any:
    """Absolute values in float32 or wider, with zeros for what is not finite."""
    found = np.abs(widened(array))
    return found if np.isfinite(found).all() else np.where(np.isfinite(found), found, 0)


def slice_maxima(found: Any, everything: Any, channels_first: bool) -> tuple[Any, Any]:
    """The largest magnitude of each item, and of each element's smaller slice; both broadcast.

    ``found`` are magnitudes, and ``everything`` is the largest of them all.
    """
    axes = range(found.ndim)
    item = _largest(found, axes[1:], everything) if found.ndim >= 2 else everything
    if found.ndim < 2:
        return item, item
    if found.ndim == 2:
        return item, np.minimum(item, _largest(found, axes[:1], item))
    sliced = _largest(found, axes[2:], item)
    if not channels_first:
        sliced = np.minimum(sliced, _largest(found, axes[1:-1], item))
    return item, sliced


def _largest(found: Any, over: Sequence[int], coarser: Any) -> Any:
    """The largest magnitudes over these axes, where there are enough elements, or else ``coarser``."""
    count = math.prod(found.shape[axis] for axis in over)
    return found.max(axis=tuple(over), keepdims=True, initial=0.0) if count >= _LEAST else coarser


def widened(array: Array) -> Any:
    """The array in float32, unless it has floats of 32 bits or more.

    The differences of short integers overflow, and numpy is slow with floats of 8 and 16 bits.
    """
    if array.dtype.kind in "fc" and array.dtype.itemsize >= 4:
        return array
    return array.astype(np.float32)
