"""How tensors lie in memory, as values that can be saved. oneDNN's memory descriptors are made of them later.

The elements of a description are float32 where its ``dtype`` is "", bfloat16 where it is "bf16", and integers of 8 bits
where it is "s8" or "u8".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from collage.backends.chains.strided import FLOAT_BYTES, Strided, ordered
from collage.graph.storage import BF16, BLOCK, BLOCKED, CHANNELS_LAST, Storage


@dataclass(frozen=True)
class Blocked:
    """A tensor in the blocked format: its second axis is in blocks of 16, the last of which is padded with zeros."""

    dims: tuple[int, ...]
    dtype: str = ""


@dataclass(frozen=True)
class Packed:
    """Weights in the order that the primitive chooses."""

    dims: tuple[int, ...]
    dtype: str = ""


Description: TypeAlias = "Strided | Blocked | Packed"

INT8, UINT8 = "s8", "u8"

ITEM_BYTES = {"": FLOAT_BYTES, BF16: 2, INT8: 1, UINT8: 1}
"""The size of an element of each dtype."""


def laid_out(dims: Sequence[int], layout: Storage) -> Strided | Blocked:
    """A whole tensor in that layout."""
    if layout == BLOCKED:
        return Blocked(tuple(dims))
    return ordered(dims, axis_order(len(dims), layout))


def axis_order(rank: int, layout: Storage) -> tuple[int, ...]:
    """The axes from the outermost to the innermost. In the blocked layout a block counts as a single channel."""
    if layout == CHANNELS_LAST:
        return (0, *range(2, rank), 1)
    return tuple(range(rank))


def outermost(dims: Sequence[int], layout: Storage) -> int:
    """The first axis in memory order that has more than one element, or more than one block of them."""
    order = axis_order(len(dims), layout)
    for axis in order:
        if dims[axis] > (BLOCK if layout == BLOCKED and axis == 1 else 1):
            return axis
    return order[-1]


def part(dims: Sequence[int], layout: Storage, axis: int, start: int, stop: int) -> tuple[Strided | Blocked, int]:
    """Elements ``start`` to ``stop`` of the axis, as a dense tensor, and where it begins in bytes.

    Raises ValueError when they do not lie together: something with more than one element lies further out.
    """
    if axis_order(len(dims), layout).index(axis) > axis_order(len(dims), layout).index(outermost(dims, layout)) and (
        start,
        stop,
    ) != (0, dims[axis]):
        raise ValueError(f"part of axis {axis} of {tuple(dims)} {layout} is not contiguous")
    smaller = [*dims]
    smaller[axis] = stop - start
    if start == 0:
        return laid_out(smaller, layout), 0
    before = [*dims]
    before[axis] = start
    if layout == BLOCKED:
        if axis == 1 and start % BLOCK:
            raise ValueError("a part of a blocked tensor begins inside a block")
        before[1] = -(-before[1] // BLOCK) * BLOCK
    offset = FLOAT_BYTES
    for extent in before:
        offset *= extent
    return laid_out(smaller, layout), offset


def view(dims: Sequence[int], layout: Storage, axis: int, start: int, stop: int) -> tuple[Strided | Blocked, int]:
    """Like ``part``, but elements that do not lie together are taken with the strides of the whole.

    Raises ValueError if only whole blocks lie together.
    """
    try:
        return part(dims, layout, axis, start, stop)
    except ValueError:
        whole = laid_out(dims, layout)
        if not isinstance(whole, Strided):
            raise
        smaller = [*dims]
        smaller[axis] = stop - start
        return Strided(tuple(smaller), whole.strides), start * whole.strides[axis] * FLOAT_BYTES
