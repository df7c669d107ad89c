"""Sliding windows: which part of the input a part of the output needs, and the padding it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """One spatial axis of a convolution or pooling, with ``size`` input elements and windows of ``reach`` elements."""

    size: int
    reach: int
    stride: int
    pad_begin: int


@dataclass(frozen=True)
class Halo:
    """Input elements ``start`` to ``stop``, and the padding before and after them. There may be no elements."""

    start: int
    stop: int
    pad_begin: int
    pad_end: int


def row_axis(src: Sequence[int], dst: Sequence[int]) -> int | None:
    """The spatial axis (from 2) along which parts of both tensors lie together when channels lie innermost.

    None when the result has a single element there, or the input has more than one further out.
    """
    for axis in range(2, len(dst)):
        if dst[axis] > 1:
            return axis
        if src[axis] > 1:
            return None
    return None


def pad_end(window: Window, outputs: int) -> int:
    """The padding after the end with which there are exactly that many outputs. It may be negative."""
    return (outputs - 1) * window.stride + window.reach - window.pad_begin - window.size


def needed(window: Window, start: int, stop: int) -> Halo:
    """The elements that outputs ``start`` to ``stop`` read."""
    first = start * window.stride - window.pad_begin
    last = (stop - 1) * window.stride - window.pad_begin + window.reach
    low, high = max(0, first), min(window.size, last)
    return Halo(low, high, low - first, last - high)


def transposed_pad_end(window: Window, outputs: int) -> int:
    """Like ``pad_end`` for a transposed convolution: the elements that are cut off the end of its result."""
    return (window.size - 1) * window.stride + window.reach - window.pad_begin - outputs


def transposed_needed(window: Window, start: int, stop: int) -> Halo:
    """The elements that outputs ``start`` to ``stop`` of a transposed convolution read."""
    stride, pad, reach = window.stride, window.pad_begin, window.reach
    low = max(0, -((reach - 1 - pad - start) // stride))
    high = min(window.size, (stop - 1 + pad) // stride + 1)
    begin = start - (low * stride - pad)
    if begin < 0:  # the output is between two inputs' windows, and the one before it counts as padding
        low, begin = low - 1, begin + stride
    return Halo(low, high, begin, (high - 1) * stride - pad + reach - stop)
