"""Kinds of special values, and input arrays that hold them."""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from collage.testing.onnx_cases import Array, Feed

__all__ = ["Kind", "draw", "kinds_of"]


class Kind(Enum):
    """The special values among an input's usual numbers."""

    USUAL = "usual numbers"
    NAN = "NaN"
    INFINITE = "infinities"
    ZERO = "zeros of both signs"
    DENORMAL = "denormals"
    LARGE = "large numbers"
    RANGE = "the whole range of integers"


_FLOATS = (Kind.USUAL, Kind.NAN, Kind.INFINITE, Kind.ZERO, Kind.DENORMAL, Kind.LARGE)

_PLANTED: dict[Kind, tuple[float, ...]] = {
    Kind.NAN: (np.nan,),
    Kind.INFINITE: (np.inf, -np.inf),
    Kind.ZERO: (0.0, -0.0),
    Kind.DENORMAL: (1e-40, -1e-40),
    Kind.LARGE: (88.0, -90.0, 400.0, -1e4, 3e4),
}
"""Values that replace some elements. In float16 some of them become 0 or infinity."""


def kinds_of(feeds: list[Feed]) -> tuple[Kind, ...]:
    """The kinds that make a difference for inputs of these dtypes."""
    if any(feed.dtype.startswith("float") for feed in feeds):
        return _FLOATS
    return (Kind.USUAL, Kind.RANGE) if any("int" in feed.dtype for feed in feeds) else (Kind.USUAL,)


def draw(feed: Feed, kind: Kind, seed: int, *, divisor: bool = False, bounded: bool = False) -> Array:
    """An array for the input. ``divisor`` keeps 0 and -1 out, ``bounded`` integers within the feed's own limits."""
    rng = np.random.default_rng(seed)
    array = feed.draw(rng)
    if feed.dtype.startswith("float"):
        planted = _PLANTED.get(kind)
        if planted:
            _plant(array, planted, rng)
        return array
    if kind is Kind.RANGE and "int" in feed.dtype and not bounded:
        info = np.iinfo(feed.dtype)
        array = rng.integers(info.min, info.max, feed.shape, feed.dtype, endpoint=True)
        edges = [info.min, info.max, info.max - 1, info.min + 1, 0, 1, info.max // 2 + 1]
        flat = array.reshape(-1)
        flat[: len(edges)] = edges[: flat.size]
        rng.shuffle(flat)
    if divisor and array.dtype.kind in "iu":
        array[(array == 0) | (array == array.dtype.type(0) - array.dtype.type(1))] = 3
    return array


def _plant(array: npt.NDArray[np.generic], values: tuple[float, ...], rng: np.random.Generator) -> None:
    """Write the values into some elements of the array, and once into all of the first row of the last axis."""
    flat = array.reshape(-1)
    count = min(flat.size, max(len(values), flat.size // 6))
    places = rng.choice(flat.size, count, replace=False)
    with np.errstate(over="ignore"):
        flat[places] = np.resize(np.asarray(values), count).astype(array.dtype)
        if array.ndim > 1:
            array.reshape(-1, array.shape[-1])[0] = values[-1]
