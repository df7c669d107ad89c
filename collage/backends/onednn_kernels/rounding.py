"""What a kernel does to float data before oneDNN convolves it in 8 bits; see `rounding.h`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collage.backends.onednn_kernels.plan import Plan
from collage.core.typed import MalformedError
from collage.graph.storage import BLOCK
from collage.native.structure import structure

_MOST = 1 << 40
_MOST_PADDED = 64
"""The most pixels that become of one pixel of the data, of which all but one are padding."""
_TABLES = 5
_LINE = 64
"""Bytes to which the parts of scratch memory begin, and which may be read behind each."""

_THREE = ctypes.c_int64 * 3


class RoundingShape(ctypes.Structure):
    """The C struct ``collage_rounding_shape``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("channels", "outputs", "groups")),
        *((name, _THREE) for name in ("in", "begin", "out")),
        *((name, ctypes.c_int64) for name in ("from_block", "from_pixel", "src_narrow", "shares")),
    )


@dataclass(frozen=True)
class Rounding:
    """How the data is rounded to 8 bits, with a range for each item and group of channels that is found in each call.

    The plan is then that of one item of ``items``. Its inputs are the kernel's, and three more: the rounded data with
    its padding, and a factor and a term for each output channel. ``data`` is the input that is rounded, and ``sliced``
    are those that have a part for each item.

    ``extents``, ``begin`` and ``padded`` are of planes, rows and columns: of the data, of the padding before it, and of
    both without what is not read. The data has the channels innermost, in blocks where it is ``blocked``, and is
    bfloat16 where it is ``narrow``. ``constants`` are the plan's numbers of the factors of the weights, the sums of the
    weights, and the bias. Items are shared out to ``shares`` threads, or the rows of the only one where the plan has as
    many shares.
    """

    data: int
    items: int
    channels: int
    outputs: int
    groups: int
    extents: tuple[int, int, int]
    begin: tuple[int, int, int]
    padded: tuple[int, int, int]
    blocked: bool
    narrow: bool
    sliced: tuple[int, ...]
    constants: tuple[int, int, int]
    shares: int

    @property
    def pixels(self) -> int:
        """The number of pixels of an item."""
        return math.prod(self.extents)

    @property
    def data_bytes(self) -> int:
        """The size of an item as it is given."""
        channels = -(-self.channels // BLOCK) * BLOCK if self.blocked else self.channels
        return self.pixels * channels * (2 if self.narrow else 4)

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """Bytes of scratch memory: the rounded data, the factors, the terms, and the tables of the shares."""
        rounded = math.prod(self.padded) * self.channels
        tables = 4 * _TABLES * self.shares * -(-self.channels // BLOCK) * BLOCK
        sizes = rounded + _LINE, 4 * self.outputs, 4 * self.outputs, tables
        data, factors, terms, rest = (-(-each // _LINE) * _LINE for each in sizes)
        return data, factors, terms, rest

    def shape(self, shares: int) -> ctypes.Structure:
        """What the kernels get, where so many shares round an item."""
        numbers: dict[str, Any] = {
            "channels": self.channels,
            "outputs": self.outputs,
            "groups": self.groups,
            "in": self.extents,
            "begin": self.begin,
            "out": self.padded,
            "from_block": BLOCK * self.pixels if self.blocked else BLOCK,
            "from_pixel": BLOCK if self.blocked else self.channels,
            "src_narrow": int(self.narrow),
            "shares": shares,
        }
        return structure(RoundingShape, numbers)


def too_padded(extents: Sequence[int], padded: Sequence[int]) -> bool:
    """Whether there is so much padding that it would be most of the memory."""
    return math.prod(padded) > _MOST_PADDED * math.prod(extents)


def check_rounding(rounding: Rounding, plan: Plan, threads: int, sizes: Sequence[int]) -> None:
    """Raises MalformedError for what there cannot be. ``sizes`` are those of the constants, in bytes.

    oneDNN's primitives tell whether the scratch memory is large enough for them.
    """
    r = rounding
    counts = r.items, r.channels, r.outputs, r.groups, *r.extents, *r.padded
    if min(counts) < 1 or min(r.begin) < 0 or max(*counts, *r.begin) > _MOST:
        raise MalformedError(f"data of {r.items} items, {r.channels} channels and {r.extents} is rounded")
    if max(r.data_bytes * r.items, sum(r.parts)) > _MOST or r.channels % r.groups or r.outputs % r.groups:
        raise MalformedError(f"{r.channels} channels in {r.groups} groups are rounded to {r.padded}")
    if too_padded(r.extents, r.padded):
        raise MalformedError(f"data of {r.extents} is padded to {r.padded}")
    for each in r.constants:
        if not 0 <= each < len(sizes) or sizes[each] < 4 * r.outputs:
            raise MalformedError(f"constant {each} is not one number for each of {r.outputs} channels")
    (step, *more) = plan.steps or ((),)
    by_rows = len(step) == r.shares and r.items == 1
    if more or not 1 <= r.shares <= threads or not (by_rows or len(step) == 1):
        raise MalformedError(f"{r.items} items are shared out to {r.shares} of {threads} threads")
