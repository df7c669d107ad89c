"""Dense tensors seen with any order of the axes, and parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FLOAT_BYTES = 4
"""The size of a float32 element."""


@dataclass(frozen=True)
class Strided:
    """A tensor with any order of its axes. ``strides`` are in elements, and ``dtype`` is "" for float32 or
    another name that `description.py` of oneDNN has."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = ""


def ordered(dims: Sequence[int], order: Sequence[int]) -> Strided:
    """A dense tensor whose axes lie in that order, the outermost first."""
    strides, step = [0] * len(dims), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= dims[axis]
    return Strided(tuple(dims), tuple(strides))


def dense(dims: Sequence[int]) -> Strided:
    """A dense tensor in the order of its axes."""
    return ordered(dims, range(len(dims)))


def cut(extent: int, parts: int, unit: int = 1) -> list[tuple[int, int]]:
    """``extent`` elements in at most ``parts`` even ranges that begin at multiples of ``unit``."""
    units = -(-extent // unit)
    parts = min(parts, units)
    marks = [(units * i + parts - 1) // parts * unit for i in range(parts)] + [extent]
    return [(a, min(b, extent)) for a, b in pairwise(marks)]


@dataclass(frozen=True)
class AxisRange:
    """Elements ``start`` to ``stop`` of an axis."""

    axis: int
    start: int
    stop: int
