"""Checks of sizes: how far into a buffer a kernel with given strides reaches, and whether the buffer is that large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from collage.core.typed import MalformedError
from collage.graph.dataflow import Array

FLOAT_BYTES = 4

Walk: TypeAlias = "tuple[int, int]"
"""The number of elements along an axis, and the distance from one to the next in floats."""


def reach(*walks: Walk, last: int = 1, start: int = 0) -> int:
    """The number of floats up to the end of the last ones that are read. Raises MalformedError for a step backwards.

    The ``walks`` begin at ``start``, and ``last`` floats are read at each of their points.
    """
    if start < 0 or last < 0 or any(count < 1 or step < 0 for count, step in walks):
        raise MalformedError(f"a kernel goes through a buffer in {walks} from {start}")
    return start + sum((count - 1) * step for count, step in walks) + last


def check_floats(what: str, array: Array, floats: float) -> None:
    """Raise MalformedError unless the array is contiguous and has at least so many floats; half of one is 2 bytes."""
    if array.nbytes < FLOAT_BYTES * floats or not array.flags.c_contiguous:
        raise MalformedError(
            f"{what} has {array.nbytes} bytes, and the kernel goes as far as {FLOAT_BYTES * floats:.0f}"
        )


def picked(what: str, arrays: Sequence[Array], index: int) -> Array:
    """The array of that index. Raises MalformedError when there is none."""
    if not 0 <= index < len(arrays):
        raise MalformedError(f"there is no {what} {index}, but {len(arrays)} of them")
    return arrays[index]


def at_least(least: int, numbers: Mapping[str, Any], *names: str) -> None:
    """Raise MalformedError unless all of these numbers, and those in lists, are at least ``least``."""
    for name in names:
        value = numbers[name]
        if min(value if isinstance(value, (list, tuple)) else (value,)) < least:
            raise MalformedError(f"{name} is {value}, less than {least}")


def one_of(valid: Sequence[int], numbers: Mapping[str, Any], *names: str) -> None:
    """Raise MalformedError unless these numbers are among the valid ones."""
    for name in names:
        if numbers[name] not in valid:
            raise MalformedError(f"{name} is {numbers[name]}, none of {', '.join(map(str, valid))}")
