"""Axes as cuDNN wants them: at least two spatial ones, and paddings at their ends."""

from __future__ import annotations

from collections.abc import Sequence

from collage.backends.base import UnsupportedError

__all__ = ["end_padding", "lifted"]


def lifted(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape (N, channels, spatial...) with at least two spatial axes."""
    batch, channels, *space = shape
    return (batch, channels, *([1] if len(space) == 1 else []), *space)


def end_padding(stride: int, begin: int, end: int) -> int:
    """The padding at the end of an axis with which there are as many windows as there shall be.

    ``end`` is the one with which no element is left over, and may be negative; some more do not change the number of
    windows. It is that at the beginning where that will do, since all engines take equal paddings. Raises
    UnsupportedError where there is none.
    """
    if end <= begin < end + stride:
        return begin
    if end + stride <= 0:
        raise UnsupportedError("the data has more windows than the result")
    return max(0, end)
