"""Kinds of inputs that show errors which usual inputs hide: outliers, equal numbers, uneven channels, large integers,
NaN and infinities.

Each kind is made of ordinary inputs by changing some of their values, so that masks stay masks and variances positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.graph.dataflow import Array, np_dtype
from collage.graph.magnitudes import INTEGER_LIMIT

_OUTLIER = 1e4
_GOLDEN = 0.618
"""Multiples of it are spread evenly over the whole numbers."""
_UNEVEN = (2.0**-6, 2.0**6)
"""Channels are scaled by powers of two between these. That rounds nothing."""


@dataclass(frozen=True)
class InputKind:
    """A way of changing usual inputs.

    ``ordinary`` tells that the changed inputs are still what networks are made for: without NaN, infinities, and
    integers above ``INTEGER_LIMIT``. Kernels must be right on ordinary inputs. Modules guard kernels that are wrong on
    others.
    """

    name: str
    ordinary: bool
    change: Callable[[Array, np.random.Generator, int], Array]
    """Makes the changed array of an array, a source of random numbers, and the array's number among the inputs."""
    of_integers: bool = False
    """Whether integers are changed, instead of floating-point numbers."""
    smaller: bool | None = None
    """Whether only arrays that are smaller than the largest one are changed, or only those that are as large as it.

    NaN in a small operand, which belongs to many numbers of a large one, would hide that of the large one.
    """

    def inputs(
        self, usual: Sequence[Array], free: Sequence[bool], rng: np.random.Generator
    ) -> tuple[Array, ...] | None:
        """The changed inputs, or None where nothing is there to be changed.

        ``usual`` are arrays in any order. ``free`` tells of each of them whether its integers may have any value (see
        ``random_inputs.free_integers``).
        """
        wanted = self._changed(usual, free)
        if not any(wanted):
            return None
        return tuple(
            self.change(array, rng, number) if each else array
            for number, (array, each) in enumerate(zip(usual, wanted, strict=True))
        )

    def applies(self, usual: Sequence[Array], free: Sequence[bool]) -> bool:
        """Whether ``inputs`` would change any of these."""
        return any(self._changed(usual, free))

    def _changed(self, usual: Sequence[Array], free: Sequence[bool]) -> list[bool]:
        """Which of the arrays are changed."""
        found = [
            a.size > 0 and (_is_integer(a) and f if self.of_integers else _is_float(a))
            for a, f in zip(usual, free, strict=True)
        ]
        if self.smaller is None:
            return found
        largest = max((a.size for a, each in zip(usual, found, strict=True) if each), default=0)
        return [each and (a.size < largest) == self.smaller for a, each in zip(usual, found, strict=True)]


def _is_integer(array: Array) -> bool:
    return array.dtype.kind in "iu"


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or "float" in array.dtype.name


def integers(shape: Sequence[int], dtype: str, rng: np.random.Generator, largest: int | None = None) -> Array:
    """Random integers of an integer dtype, up to ``largest`` (by default the dtype's own), and of both signs.

    Integers of 8 and 16 bits are uniform. Wider ones have each number of bits with the same probability, so that
    products overflow in some places only. The most negative one, whose quotient by -1 ends the process, is not among
    them.
    """
    info = np.iinfo(dtype)
    if info.bits <= 16:
        return rng.integers(info.min, info.max, shape, np_dtype(dtype), endpoint=True)
    high = int(info.max) if largest is None else min(largest, int(info.max))
    bits = rng.integers(1, high.bit_length(), shape, endpoint=True)
    drawn: Any = rng.integers(0, high, shape, np.uint64, endpoint=True)
    drawn = np.right_shift(drawn, (high.bit_length() - bits).astype(np.uint64)).astype(np_dtype(dtype))
    if info.min < 0:
        drawn = np.where(rng.random(shape) < 0.5, -drawn, drawn)
    return np.asarray(drawn, np_dtype(dtype))


def _integers(array: Array, rng: np.random.Generator, number: int) -> Array:
    return integers(array.shape, array.dtype.name, rng, INTEGER_LIMIT)


def _large_integers(array: Array, rng: np.random.Generator, number: int) -> Array:
    return integers(array.shape, array.dtype.name, rng)


def _outliers(array: Array, rng: np.random.Generator, number: int) -> Array:
    """One row of a matrix, or one position in all channels, is ten thousand times as large, in the first item only."""
    found: Any = array.copy()
    at = tuple(int(rng.integers(extent)) for extent in array.shape)
    if array.ndim <= 1:
        place: Any = at
    elif array.ndim == 2:
        place = (at[0],)
    elif array.ndim == 3:
        place = (0, at[1])
    else:
        place = (0, slice(None), *at[2:])
    with np.errstate(over="ignore"):
        found[place] = found[place] * np.asarray(_limited(array, _OUTLIER), array.dtype)
    return np.asarray(found, array.dtype)


def _along(array: Array, axis: int, powers: Callable[[float, float, int], Any]) -> Any:
    """Powers of two along an axis, which broadcast. ``powers`` takes the least, the largest, and how many."""
    low, high = (-4, 2) if np_dtype(array.dtype.name).itemsize < 4 else np.log2(_UNEVEN)  # what float16 holds
    shape = [1] * array.ndim
    if array.ndim:
        shape[axis] = array.shape[axis]
    return np.exp2(np.round(powers(low, high, math.prod(shape)))).reshape(shape)


def _uneven(array: Array, rng: np.random.Generator, number: int) -> Array:
    """Channels and items have different magnitudes. Channels are the second of four and more axes, or the last one."""
    factors = _along(array, 1 if array.ndim >= 4 else array.ndim - 1, rng.uniform)
    if array.ndim >= 2 and array.shape[0] > 1:
        low, high = (2.0**-4, 2.0**2) if np_dtype(array.dtype.name).itemsize < 4 else _UNEVEN
        factors = np.clip(factors * _along(array, 0, rng.uniform), low, high)
    return np.asarray(array * factors.astype(array.dtype), array.dtype)


def _growing(array: Array, rng: np.random.Generator, number: int) -> Array:
    """Positions have magnitudes that grow: columns of images, and rows of what has fewer axes.

    A kernel that takes the numbers of one position for those of another one shows here. Numbers that all have one
    magnitude hide it if they are averaged, or added to what is much larger.
    """
    axis = array.ndim - 1 if array.ndim >= 4 else array.ndim - 2
    if axis < 0 or (axis == 0 and array.shape[0] == 1):
        axis = array.ndim - 1
    return np.asarray(array * _along(array, axis, np.linspace).astype(array.dtype), array.dtype)


def _ties(array: Array, rng: np.random.Generator, number: int) -> Array:
    """Multiples of one half, or of another power of two where that would leave nothing or too many different ones."""
    wide = np.asarray(array, np.float64)
    with np.errstate(over="ignore"):
        typical = float(np.sqrt(np.mean(wide**2)))
    step = 0.5
    if 0 < typical < 0.25 or 8 < typical < np.inf:
        step = 2.0 ** (np.round(np.log2(typical)) - 1)
    return np.asarray(np.round(wide / step) * step).astype(array.dtype)


def _limited(array: Array, factor: float) -> float:
    return factor if array.dtype.itemsize >= 4 else 16.0


def _nan(array: Array, rng: np.random.Generator, number: int) -> Array:
    return _planted(array, number, [np.nan])


def _infinite(array: Array, rng: np.random.Generator, number: int) -> Array:
    return _planted(array, number, [np.inf, -np.inf])


def _masked(array: Array, rng: np.random.Generator, number: int) -> Array:
    """A whole row or channel of the first item is negative infinity, as scores are that a mask hides everywhere.

    A maximum that begins at the least finite number finds that number there. A single number is a row.
    """
    if array.size == 1:
        return np.full_like(array, -np.inf)
    if array.ndim < 2:
        return array
    found = np.array(array)
    rows = found if array.ndim == 2 else found[0]
    rows[int(len(rows) * _GOLDEN * (number + 1)) % len(rows)] = -np.inf
    return found


def _planted(array: Array, number: int, values: Sequence[float]) -> Array:
    """The array with each of the values once, in its first item, or in several ones where that has too few places.

    A single number becomes the first value. The places differ from input to input, since NaN from one would hide that
    of another.
    """
    found = np.array(array)
    flat = found.reshape(-1)
    first = flat.size // array.shape[0] if array.ndim >= 2 else flat.size
    if first < len(values):
        first = flat.size
    start = int(first * _GOLDEN * (number + 1))
    for offset, value in enumerate(values[:first]):
        flat[(start + offset) % first] = value
    return found


KINDS: Sequence[InputKind] = (
    InputKind("NaN", False, _nan, smaller=False),
    InputKind("outliers", True, _outliers),
    InputKind("integers of many sizes", True, _integers, of_integers=True),
    InputKind("large integers", False, _large_integers, of_integers=True),
    InputKind("infinities", False, _infinite, smaller=False),
    InputKind("masked rows", False, _masked),
    InputKind("equal numbers", True, _ties),
    InputKind("NaN in small operands", False, _nan, smaller=True),
    InputKind("infinities in small operands", False, _infinite, smaller=True),
    InputKind("uneven channels", True, _uneven),
)
"""The kinds that show most come first: where the reference takes long, the last ones are left out."""

WHOLE_KINDS: Sequence[InputKind] = (*KINDS, InputKind("growing magnitudes", True, _growing))
"""The kinds that whole models are checked on."""
