"""Layouts: how a value lies in memory. The graph keeps logical shapes; only kernels and buffers know layouts."""

from __future__ import annotations

from enum import Enum

import numpy as np

from collage.graph.dataflow import Array, TensorType

BLOCK = 16
"""Channels in a block: one AVX-512 register of float32."""


class Layout(str, Enum):
    """PLAIN is the logical order (N, C, spatial...), CHANNELS_LAST is N, spatial..., C, and BLOCKED is N, C/16,
    spatial..., 16 with the channels padded with zeros to a multiple of 16.

    The last two exist for values of 3 to 5 dimensions whose second one is the channels.
    """

    PLAIN = "plain"
    CHANNELS_LAST = "channels-last"
    BLOCKED = "blocked"

    def __str__(self) -> str:
        return self.value


def has_channels(kind: TensorType) -> bool:
    """Whether values of that type can have another layout than the plain one."""
    return 3 <= len(kind.shape) <= 5


def stored_type(kind: TensorType, layout: Layout) -> TensorType:
    """The dense type that a value of logical type ``kind`` has in memory in that layout.

    Raises ValueError when there is no such layout for it.
    """
    if layout is Layout.PLAIN:
        return kind
    if not has_channels(kind):
        raise ValueError(f"no {layout} layout for {kind}")
    batch, channels, *spatial = kind.shape
    if layout is Layout.CHANNELS_LAST:
        return TensorType((batch, *spatial, channels), kind.dtype)
    return TensorType((batch, -(-channels // BLOCK), *spatial, BLOCK), kind.dtype)


def to_layout(array: Array, layout: Layout) -> Array:
    """A plain array as a C-contiguous one in that layout (a copy unless plain)."""
    if layout is Layout.PLAIN:
        return array
    if layout is Layout.CHANNELS_LAST:
        return np.ascontiguousarray(np.moveaxis(array, 1, -1))
    batch, channels, *spatial = array.shape
    blocks = -(-channels // BLOCK)
    padded = np.zeros((batch, blocks * BLOCK, *spatial), array.dtype)
    padded[:, :channels] = array
    return np.ascontiguousarray(np.moveaxis(padded.reshape(batch, blocks, BLOCK, *spatial), 2, -1))


def from_layout(stored: Array, layout: Layout, kind: TensorType) -> Array:
    """The plain array of logical type ``kind`` that ``stored`` holds; the inverse of ``to_layout``."""
    if layout is Layout.PLAIN:
        return stored
    if layout is Layout.CHANNELS_LAST:
        return np.ascontiguousarray(np.moveaxis(stored, -1, 1))
    batch, channels, *spatial = kind.shape
    merged = np.moveaxis(stored, -1, 2).reshape(batch, -1, *spatial)
    return np.ascontiguousarray(merged[:, :channels])
