"""The numerics gate: how far a kernel's output is from the reference, and how far it may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from collage.graph.dataflow import Array

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


def relative_error(actual: Array, expected: Array, *, rounded: bool = False) -> float:
    """Largest absolute error over the largest absolute expected value (over 1 when all of that is zero).

    NaN and infinities must be the same and at the same places, integers and booleans equal; otherwise, and
    for another shape or dtype, the error is infinite. The scale is the whole tensor's, not the element's: an
    element near zero is the difference of large numbers, and no library gets it right to many digits.

    Where values are ``rounded`` on the way, integers of 8 and 16 bits count as numbers, too.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return math.inf
    if expected.size == 0:
        return 0.0
    if not _is_inexact(expected) and not (rounded and _is_short(expected)):
        return 0.0 if np.array_equal(actual, expected) else math.inf
    a, e = _widened(actual), _widened(expected)
    finite = np.isfinite(e)
    with np.errstate(all="ignore"):
        if not finite.all():
            if not np.array_equal(a[~finite], e[~finite], equal_nan=True):
                return math.inf
            a, e = a[finite], e[finite]
            if e.size == 0:
                return 0.0
        scale = float(np.abs(e).max())
        error = float(np.abs(a - e).max()) / (scale or 1.0)
    return error if math.isfinite(error) else math.inf


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
