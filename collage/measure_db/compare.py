"""The numerics gate: how far a kernel's output is from the reference, and how far it may be.

Errors are told in units of a scale that each element shares with its neighbours: the largest magnitude in the same item
and channel, row or column. One scale for a whole tensor would let scores be anything beside boxes in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN, Storage, to_layout

# Libraries sum in different orders, and fast algorithms (Winograd, fused exp) lose some digits. A sum of K
# products in another order differs by about sqrt(K) units in the last place: 6e-6 in float32 for K = 10,000,
# and a region of an engine chains a few dozen of those. Wrong kernels are off by far more: a convolution
# silently run in bfloat16 shows 3e-3 here, a wrong padding or axis 1e-1.
_TOLERANCES = {
    "float64": 1e-8,
    "float32": 1e-4,
    "float16": 1e-2,  # 11 bits: 5e-4 an operation, and libraries differ in whether they accumulate in float32
    "bfloat16": 5e-2,  # 8 bits: 4e-3 an operation
    "complex64": 1e-4,
    "complex128": 1e-8,
}


_ROUNDED = 5e-2
"""Of quantised arithmetic. Where a value is between two of the 255 steps, an engine that sums integers takes the one
and an engine that sums floats the other: one step is 8e-3 of the largest value, and it goes on to the next layer.
ResNet-18 in 8 bits ends 8e-3 off in ONNX Runtime's and OpenVINO's integer kernels alike.
"""

_LEAST = 8
"""Elements that a scale is the largest of, at least. The largest of fewer may be near zero by chance."""

_FLOOR = 1e-3
"""Of the item's largest magnitude: no scale is less. With a tolerance of 1e-4 that is one unit in the last place of
the item's largest value in float32; sums that cancel are not right to more."""

_TINY = 2.0**20
"""Times the least normal number: no scale is less. Denormals may be taken for zero, and one over them is infinite."""

_PADDING = 1e30
"""One over the scale of what pads a layout: whatever is not zero there is too much."""

_TIMES = 32.0
"""How much further off than by changed last bits of the inputs a result may be. Sums of thousands of products round in
each step: direct ones come to 4 times, Strassen's algorithm to 25 on ResNeXt50. Arithmetic of fewer bits is far beyond:
that of bfloat16 at ten thousand times."""

_OVERFLOW = 1e37
"""Magnitudes from which on float32 may overflow in one order of summation and not in another."""


def tolerance(dtype: str) -> float:
    """Largest relative error (see relative_error) an output of that dtype may have; 0 for integers."""
    if dtype.startswith("float8"):
        return 0.2
    return _TOLERANCES.get(dtype, 0.0)


def region_tolerance(dtypes: Iterable[str], *, rounded: bool = False) -> float:
    """Tolerance of a region that computes in these dtypes: the coarsest decides, wherever in it that is.

    ``rounded`` tells that it quantises (see ``op_kinds.rounds``).
    """
    return max((tolerance(dtype) for dtype in dtypes), default=0.0) if not rounded else _ROUNDED


def dtypes_of(values: Sequence[Any]) -> list[str]:
    """Names of the dtypes of values of any type."""
    found: list[str] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += dtypes_of(value)
        elif value is not None and not isinstance(value, dict):
            found.append(np.asarray(value).dtype.name)
    return found


def scales(expected: Array, *, channels_first: bool = False) -> Any:
    """The scale that the error of each element is told in; it broadcasts to the shape of ``expected``.

    It is the largest magnitude in the element's slice: the row and the column of a matrix; in tensors of three and more
    dimensions what has the same first and second index, and what has the same first and last one. The smaller one
    counts, but never less than a thousandth of the largest magnitude in the same item (the first index). With
    ``channels_first`` (the outputs of convolutions) the last index is a pixel's, and has no scale of its own.

    Slices of fewer than 8 elements have the scale of the next larger one. All of a vector has one scale, and where
    everything is zero that is 1. Infinities and NaN do not count, and denormals are next to nothing.
    """
    magnitudes = _magnitudes(expected)
    everything = magnitudes.max(initial=0.0, keepdims=True)
    item, found = _slices(magnitudes, everything, channels_first)
    found = np.maximum(found, _FLOOR * item)
    found = np.where(found > 0, found, everything)
    least = _TINY * float(np.finfo(magnitudes.dtype).tiny) if magnitudes.dtype.kind == "f" else 0.0
    return np.where(found > 0, np.maximum(found, least), 1.0)


def _magnitudes(array: Array) -> Any:
    """Absolute values, with zeros for what is not finite."""
    found = np.abs(_widened(array))
    return found if np.isfinite(found).all() else np.where(np.isfinite(found), found, 0)


def _slices(magnitudes: Any, everything: Any, channels_first: bool) -> tuple[Any, Any]:
    """The largest magnitudes of each item, and of each element's smaller slice; both broadcast."""
    axes = range(magnitudes.ndim)
    item = _largest(magnitudes, axes[1:], everything) if magnitudes.ndim >= 2 else everything
    if magnitudes.ndim < 2:
        return item, item
    if magnitudes.ndim == 2:
        return item, np.minimum(item, _largest(magnitudes, axes[:1], item))
    found = _largest(magnitudes, axes[2:], item)
    if not channels_first:
        found = np.minimum(found, _largest(magnitudes, axes[1:-1], item))
    return item, found


def _largest(magnitudes: Any, over: Sequence[int], coarser: Any) -> Any:
    """The largest magnitudes over these axes, where there are enough elements, or else ``coarser``."""
    count = math.prod(magnitudes.shape[axis] for axis in over)
    return magnitudes.max(axis=tuple(over), keepdims=True, initial=0.0) if count >= _LEAST else coarser


@dataclass(frozen=True)
class Expected:
    """An array that outputs are compared with, many times. Make it with ``of``."""

    value: Array
    odd: Array | None
    """Where it is NaN or infinite; None where it is finite throughout."""
    inverse: Array | None
    """One over the scales; None for integers and booleans, which must be equal."""
    huge: Array | None
    """Where it may as well be infinite, or as large as a number can be; None where that is nowhere."""

    @staticmethod
    def of(
        array: Array,
        *,
        rounded: bool = False,
        channels_first: bool = False,
        layout: Storage = PLAIN,
        lenient: bool = False,
    ) -> Expected:
        """Of a plain array, for outputs in ``layout``. Where values are ``rounded`` on the way, integers of 8 and 16
        bits count as numbers, too. What overflows may be as large as a number can be instead, and the other way round,
        where the comparison is ``lenient``."""
        stored = to_layout(array, layout)
        if not _is_inexact(array) and not (rounded and _is_short(array)):
            return Expected(stored, None, None, None)
        wide = _widened(stored)
        odd = ~np.isfinite(wide)
        huge = np.abs(wide) >= _OVERFLOW if lenient else None
        inverse = (1.0 / scales(array, channels_first=channels_first)).astype(
            _widened(array).real.dtype, copy=False
        )
        if layout != PLAIN:
            whole = np.broadcast_to(inverse, array.shape)
            padding: Any = to_layout(np.ones(array.shape, bool), layout)
            inverse = to_layout(np.ascontiguousarray(whole), layout)
            inverse[~padding] = _PADDING  # its readers rely on zeros there
        return Expected(
            stored,
            odd if odd.any() else None,
            inverse,
            huge if huge is not None and (odd | huge).any() else None,
        )

    def error(self, actual: Array) -> float:
        """The largest error in units of the scale; infinite for another shape or dtype, or NaN elsewhere."""
        expected = self.value
        if actual.shape != expected.shape or actual.dtype != expected.dtype:
            return math.inf
        if expected.size == 0:
            return 0.0
        if self.inverse is None:
            return 0.0 if np.array_equal(actual, expected) else math.inf
        a, e = _widened(actual), _widened(expected)
        with np.errstate(all="ignore"):
            distance: Any = np.asarray(np.subtract(a, e))
            distance = np.abs(distance, out=None if distance.dtype.kind == "c" else distance)
            ignored = self.odd
            if self.huge is not None:
                ordinary = np.abs(a) < _OVERFLOW
                ignored = (self.huge & ~ordinary) if ignored is None else ignored | (self.huge & ~ordinary)
                if np.any(ignored & ordinary):
                    return math.inf
            elif ignored is not None and not np.array_equal(a[ignored], e[ignored], equal_nan=True):
                return math.inf
            if ignored is not None:
                distance[ignored] = 0
            distance *= self.inverse
            error = float(distance.max())
        return error if math.isfinite(error) else math.inf


def relative_error(
    actual: Array, expected: Array, *, rounded: bool = False, channels_first: bool = False
) -> float:
    """Largest absolute error over the scale of its element (see ``scales``).

    NaN and infinities must be the same and at the same places, integers and booleans equal; otherwise, and
    for another shape or dtype, the error is infinite.

    Where values are ``rounded`` on the way, integers of 8 and 16 bits count as numbers, too.
    """
    return Expected.of(expected, rounded=rounded, channels_first=channels_first).error(actual)


def is_tolerable(
    actual: Array, expected: Array, allowed: float, nearby: Sequence[Array], *, channels_first: bool = False
) -> bool:
    """Whether an output is as good as floating-point arithmetic lets it be.

    ``nearby`` are outputs for inputs that differ in the last bits. On top of ``allowed`` of its scale each element may
    be off by a few times what these bits change in its slice; integers may be what any of them is.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if not _is_inexact(expected):
        return bool(np.all(np.logical_or.reduce([actual == each for each in (expected, *nearby)])))
    a, e = np.asarray(_widened(actual)), np.asarray(_widened(expected))
    with np.errstate(all="ignore"):
        odd = ~np.isfinite(e)
        if not np.array_equal(a[odd], e[odd], equal_nan=True):
            return False
        slack = allowed * scales(expected, channels_first=channels_first)
        changes = [_magnitudes(np.asarray(_widened(each) - e)) for each in nearby]
        if changes:
            change = np.maximum.reduce(changes)
            everything = change.max(initial=0.0, keepdims=True)
            slack = slack + _TIMES * _slices(change, everything, channels_first)[1]
        return bool(np.all(odd | (np.abs(a - e) <= slack)))


def slightly_changed(array: Array, rng: np.random.Generator) -> Array:
    """Floating-point numbers changed in their last bits, by up to eight units of the last place; others as they are."""
    if not _is_inexact(array) or array.dtype.kind == "c":
        return array
    eps = {8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-10}.get(array.dtype.itemsize, 0.0)
    with np.errstate(all="ignore"):
        changed = np.asarray(array, np.float64) * (1 + rng.uniform(-4 * eps, 4 * eps, array.shape))
        return changed.astype(array.dtype)


def difference(actual: Any, expected: Any, *, rounded: bool = False) -> tuple[float, float]:
    """Largest absolute and relative error (see relative_error) of values of any type; infinite when they differ in it.

    Sequences are compared element by element; text must be equal.
    """
    if isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            return math.inf, math.inf
        pairs = [difference(a, e, rounded=rounded) for a, e in zip(actual, expected, strict=True)]
        return max((p[0] for p in pairs), default=0.0), max((p[1] for p in pairs), default=0.0)
    if expected is None or isinstance(expected, dict):
        same = actual is None if expected is None else actual == expected
        return (0.0, 0.0) if same else (math.inf, math.inf)
    a, e = np.asarray(actual), np.asarray(expected)
    if e.dtype.kind in "OUS":
        same = a.shape == e.shape and bool(np.all(a.astype(str) == e.astype(str)))
        return (0.0, 0.0) if same else (math.inf, math.inf)
    error = relative_error(a, e, rounded=rounded)
    if not math.isfinite(error) or e.size == 0 or e.dtype.kind not in "fiu":
        return error, error
    with np.errstate(all="ignore"):
        return float(np.nanmax(np.abs(a.astype(np.float64) - e.astype(np.float64)), initial=0.0)), error


def _is_inexact(array: Array) -> bool:
    return array.dtype.kind in "fc" or "float" in array.dtype.name


def _is_short(array: Array) -> bool:
    return array.dtype.kind in "iu" and array.dtype.itemsize <= 2


def _widened(array: Array) -> Any:
    """float32 for short integers, whose differences overflow, and 8- and 16-bit floats, which numpy is slow with."""
    if array.dtype.kind in "fc" and array.dtype.itemsize >= 4:
        return array
    return array.astype(np.float32)
