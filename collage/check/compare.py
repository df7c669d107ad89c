"""How far an output is from the reference, in units of its scale (see ``scales``), and how far it may be."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from collage.check.scales import magnitudes, scales, slice_maxima, widened
from collage.graph.dataflow import Array, TensorType, np_dtype
from collage.graph.formats import Narrow
from collage.graph.storage import (
    BF16,
    FP16,
    INT8,
    PLAIN,
    TF32,
    Storage,
    stored_type,
    to_layout,
)
from collage.graph.storage import widened as unrounded
from collage.kernel.options import DYNAMIC_INT8

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
"""The tolerance of quantised arithmetic. Where a value is between two of the 255 steps, an engine that sums integers
takes one of them, and an engine that sums floats the other. A step is 8e-3 of the largest value, and it goes on to the
next layer. ResNet-18 in 8 bits ends 8e-3 off in the integer kernels of both ONNX Runtime and OpenVINO.
"""


@dataclass(frozen=True)
class Rounding:
    """What a precision does to numbers. The precision "" does nothing to them."""

    most: float = 0.0
    """The largest relative error of a number. If steps are even, this holds for the larger numbers of a row."""
    allowed: float = 0.0
    """The error that a kernel may have. It only tells wrong kernels from right ones, since the search charges a kernel
    the error that it has: convolutions and products show 3e-3 to 1e-2 in bfloat16, and five times as much in 8 bits,
    more if rows are few and each column has a scale of its own. ONNX Runtime's 8 bits are of whole networks, whose
    errors add up."""
    of_each: bool = False
    """Whether each number is rounded by itself, so that a large one costs those beside it nothing. In
    float16 a large number becomes infinite, which no rounding explains."""
    even: bool = False
    """Whether all numbers of a row or more have the same step, so that small ones lose more."""


ROUNDINGS: Mapping[str, Rounding] = {
    "": Rounding(),
    BF16: Rounding(2.0**-8, 5e-2, of_each=True),
    TF32: Rounding(2.0**-11, 1e-2, of_each=True),
    FP16: Rounding(2.0**-11, 1e-2),
    INT8: Rounding(2.0**-7, 2e-1, even=True),
    DYNAMIC_INT8: Rounding(2.0**-7, 0.25, even=True),
}
"""The rounding of each precision by its name."""

_PADDING = 1e30
"""One over the scale of what pads a layout, so that whatever is not zero there is too much."""

_TIMES = 32.0
"""A result may be off by this many times what changed last bits of the inputs change. Sums of thousands of products
round in each step: direct ones come to 4 times. Arithmetic in fewer bits is far beyond that; bfloat16 comes to ten
thousand times."""

_TIMES_REDUCED = 4.0
"""The same for reduced precisions, whose inputs are changed by as much as rounding them does, and no more."""

_OVERFLOW, _OVERFLOW_FLOAT16 = 1e37, 6.4e4
"""From this magnitude on, float32 and float16 may overflow in one order of summation and not in another."""


def _overflow(dtype: np.dtype[Any]) -> float:
    return _OVERFLOW_FLOAT16 if dtype == np.float16 else _OVERFLOW


def tolerance(dtype: str) -> float:
    """The largest relative error (see ``relative_error``) that an output of that dtype may have; 0 for integers."""
    if dtype.startswith("float8"):
        return 0.2
    return _TOLERANCES.get(dtype, 0.0)


def region_tolerance(dtypes: Iterable[str], *, rounded: bool = False) -> float:
    """The tolerance of a region that computes in these dtypes. The coarsest one decides, wherever in the region it is.

    ``rounded`` tells that it quantises (see ``op_kinds.rounds``).
    """
    return max((tolerance(dtype) for dtype in dtypes), default=0.0) if not rounded else _ROUNDED


def of_shared_digits(precisions: Iterable[str]) -> frozenset[str]:
    """Find those of a module's precisions in which a large number costs the numbers beside it their digits."""
    return frozenset(each for each in precisions if not ROUNDINGS.get(each, Rounding()).of_each)


def dtypes_of(values: Sequence[Any]) -> list[str]:
    """Names of the dtypes of values, which may be arrays, numbers, and sequences of these; other values have none."""
    found: list[str] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += dtypes_of(value)
        elif isinstance(value, dict):
            found += ["float32"] * any(isinstance(each, float) for each in value.values())
        elif value is not None:
            found.append(np.asarray(value).dtype.name)
    return found


@dataclass(frozen=True)
class Rule:
    """How an output is compared. The operators that it is made by decide it.

    ``allowed`` is the largest error, in units of the output's scale. If values are ``rounded`` on the way, integers of
    8 and 16 bits may differ by an error, too. ``channels_first`` is as in ``scales``. A ``drawn`` output depends on
    random numbers: only its type, shape and finiteness are compared.
    """

    allowed: float = 0.0
    rounded: bool = False
    channels_first: bool = False
    drawn: bool = False


@dataclass(frozen=True)
class Expected:
    """An array that outputs are compared with, many times. Make it with ``of``."""

    value: Array
    """In the order of the storage, and not rounded if that is narrow."""
    dtype: np.dtype[np.generic]
    """The dtype of outputs."""
    odd: Array | None
    """Which elements are NaN or infinite; None if all are finite."""
    inverse: Array | None
    """One over the scale of each element; None for integers and booleans, which must be equal."""
    huge: Array | None
    """Which elements any huge number or infinity may replace; None if there are none."""
    narrow: Narrow | None = None
    """The format of outputs that are stored in fewer bits."""
    drawn: bool = False

    @staticmethod
    def of(array: Array, rule: Rule = Rule(), *, layout: Storage = PLAIN, lenient: bool = False) -> Expected:
        """What is expected of outputs in the storage ``layout``, from a plain array.

        If the comparison is ``lenient``, what overflows may also be a huge number, and the other way round.
        """
        dtype = array.dtype
        narrow = layout.format if isinstance(layout.format, Narrow) else None
        if narrow is not None:
            dtype = np_dtype(stored_type(TensorType(array.shape, dtype.name), layout).dtype)
        layout = unrounded(layout)
        stored = to_layout(array, layout)
        if not is_inexact(array) and not (rule.rounded and array.dtype.kind in "iu" and array.dtype.itemsize <= 2):
            return Expected(stored, dtype, None, None, None, narrow, rule.drawn)
        wide = widened(stored)
        odd = ~np.isfinite(wide)
        huge = np.abs(wide) >= _overflow(dtype) if lenient else None
        inverse = (1.0 / scales(array, channels_first=rule.channels_first)).astype(
            widened(array).real.dtype, copy=False
        )
        if layout.format != PLAIN.format:
            whole = np.broadcast_to(inverse, array.shape)
            padding: Any = to_layout(np.ones(array.shape, bool), layout)
            inverse = np.where(padding, to_layout(whole, layout), _PADDING)  # its readers rely on zeros there
        return Expected(
            stored,
            dtype,
            odd if odd.any() else None,
            inverse,
            huge if huge is not None and (odd | huge).any() else None,
            narrow,
            rule.drawn,
        )

    def error(self, actual: Array) -> float:
        """The largest error in units of the scale.

        It is infinite for another shape or dtype, and where NaN or infinities are at other places.
        """
        expected = self.value
        if actual.shape != expected.shape or actual.dtype != self.dtype:
            return math.inf
        if expected.size == 0:
            return 0.0
        if self.drawn:
            finite = self.inverse is None or self.odd is not None or np.isfinite(widened(actual)).all()
            return 0.0 if finite else math.inf
        if self.inverse is None:
            return 0.0 if np.array_equal(actual, expected) else math.inf
        a, e = widened(actual if self.narrow is None else self.narrow.widened(actual)), widened(expected)
        with np.errstate(all="ignore"):
            distance: Any = np.asarray(np.subtract(a, e))
            distance = np.abs(distance, out=None if distance.dtype.kind == "c" else distance)
            ignored = self.odd
            if self.huge is not None:
                ordinary = np.abs(a) < _overflow(self.dtype)
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

    def as_noise(self, actual: Array) -> float:
        """The largest element, in its scale, of normal noise that has the power of the errors.

        The noise is as large in all elements, in their scales. A single element whose scale is next to nothing makes
        the largest error any times larger, and changes nothing of what is computed from the output. ``actual`` is one
        whose ``error`` is finite.
        """
        if self.inverse is None or self.value.size == 0:
            return 0.0
        a, e = widened(actual if self.narrow is None else self.narrow.widened(actual)), widened(self.value)
        with np.errstate(all="ignore"):
            power: Any = np.square(np.abs(a - e), dtype=np.float64)
            inverse: Any = self.inverse
            scale = np.broadcast_to(1.0 / inverse, self.value.shape)
            most = float(np.square(scale, dtype=np.float64).sum())
        found = math.sqrt(float(power.sum(where=np.isfinite(power))) / most)
        return found * NormalDist().inv_cdf((1 + 0.5 ** (1 / self.value.size)) / 2)


def relative_error(actual: Array, expected: Array, *, rounded: bool = False) -> float:
    """The largest absolute error over the scale of its element (see ``scales``).

    NaN and infinities must be the same and at the same places, and integers and booleans must be equal, unless values
    are ``rounded`` on the way. Otherwise, and for another shape or dtype, the error is infinite.
    """
    return Expected.of(expected, Rule(rounded=rounded)).error(actual)


def is_tolerable(
    actual: Array,
    expected: Array,
    allowed: float,
    nearby: Sequence[Array],
    *,
    channels_first: bool = False,
    precision: str = "",
) -> bool:
    """Whether an output is as good as floating-point arithmetic lets it be.

    ``nearby`` are outputs for inputs that differ in the last bits. On top of ``allowed`` of its scale each element may
    be off by a few times what these bits change in its slice; integers may be what any of them is. ``precision`` is
    the one that they are changed by (see ``slightly_changed``).
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if not is_inexact(expected):
        return bool(np.all(np.logical_or.reduce([actual == each for each in (expected, *nearby)])))
    a, e = np.asarray(widened(actual)), np.asarray(widened(expected))
    with np.errstate(all="ignore"):
        odd = ~np.isfinite(e)
        if not np.array_equal(a[odd], e[odd], equal_nan=True):
            return False
        slack = allowed * scales(expected, channels_first=channels_first)
        changes = [magnitudes(np.asarray(widened(each) - e)) for each in nearby]
        if changes:
            change = np.maximum.reduce(changes)
            everything = change.max(initial=0.0, keepdims=True)
            times = _TIMES_REDUCED if precision else _TIMES
            slack = slack + times * slice_maxima(change, everything, channels_first)[1]
        return bool(np.all(odd | (np.abs(a - e) <= slack)))


def slightly_changed(array: Array, rng: np.random.Generator, precision: str = "") -> Array:
    """The array with floating-point numbers changed by up to eight units in the last place; others stay as they are.

    For a reduced ``precision`` they are changed by as much as rounding to it changes numbers at most.
    """
    if not is_inexact(array) or array.dtype.kind == "c":
        return array
    eps = {8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-10}.get(array.dtype.itemsize, 0.0)
    with np.errstate(all="ignore"):
        most = ROUNDINGS[precision].most if precision else 4 * eps
        changed = np.asarray(array, np.float64) * (1 + rng.uniform(-most, most, array.shape))
        return changed.astype(array.dtype)


def changed_by_steps(array: Array, rng: np.random.Generator) -> Array:
    """The array with floating-point numbers changed by up to half of a step, of which 127 reach the largest one.

    Rounding to 8 bits with one scale does that: numbers that are next to nothing lose all of their digits.
    """
    if not is_inexact(array) or array.dtype.kind == "c":
        return array
    most = float(magnitudes(array).max(initial=0.0)) / 254
    with np.errstate(all="ignore"):
        return (np.asarray(array, np.float64) + rng.uniform(-most, most, array.shape)).astype(array.dtype)


def _drawn_difference(actual: Any, expected: Any) -> tuple[float, float]:
    if not isinstance(expected, np.ndarray) or expected.dtype.kind in "OUS":
        return (0.0, 0.0) if type(actual) is type(expected) else (math.inf, math.inf)
    a = np.asarray(actual)
    if a.ndim == expected.ndim:
        expected = np.resize(expected, a.shape)  # how many elements there are may depend on them, too
    error = Expected.of(expected, Rule(drawn=True)).error(a)
    return error, error


def difference(
    actual: Any, expected: Any, *, rounded: bool = False, drawn: Collection[int] = ()
) -> tuple[float, float]:
    """The largest absolute and relative error (see ``relative_error``) of values of any type.

    Sequences are compared element by element, and text must be equal. Both errors are infinite for values of different
    types. Of those at the positions ``drawn``, only types, shapes and finiteness are compared.
    """
    if isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            return math.inf, math.inf
        if (rows := _of_maps(expected)) is not None and (own := _of_maps(actual)) is not None:
            return difference(own, rows) if [*actual[0]] == [*expected[0]] else (math.inf, math.inf)
        pairs = [
            _drawn_difference(a, e) if at in drawn else difference(a, e, rounded=rounded)
            for at, (a, e) in enumerate(zip(actual, expected, strict=True))
        ]
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
        apart = np.abs(np.atleast_1d(a.astype(np.float64) - e.astype(np.float64)))
        return float(np.nanmax(apart, initial=0.0)), error


def _of_maps(values: Sequence[Any]) -> Array | None:
    """A row for each of several maps from equal keys to floats; None for other values."""
    if not values or not all(isinstance(each, dict) and [*each] == [*values[0]] for each in values):
        return None
    found = np.array([[*each.values()] for each in values])
    return found if found.dtype.kind == "f" else None


def is_inexact(value: Any) -> bool:
    """Whether a value is an array of floating-point numbers, of any type."""
    return isinstance(value, np.ndarray) and (value.dtype.kind in "fc" or "float" in value.dtype.name)
