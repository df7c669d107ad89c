"""Winograd's convolution, F(2x2, 3x3) and F(4x4, 3x3) (Lavin & Gray 2015); see `winograd.cpp`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError, Variant
from collage.backends.native_kernels.algorithm import Algorithm, Packed, shared_out, structure
from collage.backends.native_kernels.convolution import SMALL_FLOP, in_layout, read_convolution
from collage.backends.native_kernels.points import POINTS, transforms
from collage.backends.onednn_kernels.chain import Chain, Floats
from collage.backends.onednn_kernels.conv import Conv
from collage.backends.onednn_kernels.scratch import aligned, shared_scratch
from collage.graph.dataflow import Array
from collage.graph.layout import BLOCK, Layout
from collage.native import NativeKernel, Step

TILES, CHANNELS, WHOLE = "tiles", "output channels", ""

_PANEL = 2 * BLOCK
_ROWS = 14
"""Rows of the register tile: chunks of tiles are multiples of it."""

_CHUNK_BYTES = 1_200_000
"""Of transformed values at a time. 64 to 256 channels take as long with half as much, and twice as much loses 3%
(1.25 MB for 14 tiles of 4x4 of 64 channels, 4 planes of 28x28, on a core with 1 MB of L2)."""
_CHUNK_DEPTHS = 4

_GFLOP_PER_THREAD, _CYCLES_PER_POINT, _GHZ, _GB_PER_S = 240.0, 3.0, 4.0, 40.0
_SLOWER = 1.5


_WEIGHTS_OF = {tile: transforms(POINTS[tile + 1], tile, 3).weights for tile in (2, 4)}
"""By the outputs of a tile in each direction; the other two transforms are in `winograd.cpp`."""


@dataclass(frozen=True)
class _Way:
    """Outputs of a tile in each direction, and how the work is shared."""

    tile: int
    split: str

    @property
    def points(self) -> int:
        return (self.tile + 2) ** 2

    def __str__(self) -> str:
        return f"winograd {self.tile}x{self.tile}" + (f", {self.split}" if self.split else "")


class Winograd(Algorithm):
    """3x3 windows, and 3x3 windows of several planes, at distances of 1; channels in multiples of 16."""

    name = "winograd"
    roots = frozenset({"nn.conv2d", "nn.conv3d"})

    def variants(self, chain: Chain, threads: int) -> Sequence[Variant]:
        """Blocked; tiles and splits that might be the fastest by a rough count of arithmetic and memory traffic."""
        conv = _checked(read_convolution(chain).conv)
        splits = [TILES, CHANNELS] if threads > 1 else [WHOLE]
        if threads > 1 and conv.flop < 4 * SMALL_FLOP:
            splits.append(WHOLE)
        costs = {
            _Way(tile, split): _milliseconds(conv, _Way(tile, split), threads)
            for split in splits
            for tile in (4, 2)
        }
        least = {
            kind: min(costs[way] for way in costs if (way.split == WHOLE) is kind)
            for kind in {way.split == WHOLE for way in costs}
        }
        return [
            in_layout(chain, Layout.BLOCKED, str(way))
            for way, cost in costs.items()
            if cost <= _SLOWER * least[way.split == WHOLE]
        ]

    def pack(self, chain: Chain, variant: Variant, threads: int) -> Packed:
        """The shape of the kernel, the transformed weights, and the bias."""
        task = read_convolution(chain)
        conv = _checked(task.conv)
        way = next(
            w for t in _WEIGHTS_OF for s in (TILES, CHANNELS, WHOLE) if str(w := _Way(t, s)) == variant.split
        )
        chunk_tiles, chunk_depths = _chunk(conv, way.tile)
        depths = _planes(conv)
        numbers = {
            "batch": conv.dst[0],
            "in_blocks": conv.src[1] // BLOCK,
            "out_blocks": conv.dst[1] // BLOCK,
            "in_depth": depths.inputs,
            "in_height": conv.src[-2],
            "in_width": conv.src[-1],
            "out_depth": depths.outputs,
            "out_height": conv.dst[-2],
            "out_width": conv.dst[-1],
            "depth_taps": depths.taps,
            "pad_depth": depths.pad,
            "pad_top": conv.pad_begin[-2],
            "pad_left": conv.pad_begin[-1],
            "tile": way.tile,
            "chunk_tiles": chunk_tiles,
            "chunk_depths": chunk_depths,
            "by_channels": way.split == CHANNELS,
            "shares": 1 if way.split == WHOLE else threads,
            "low": task.low,
            "high": task.high,
            "data": chain.subgraph.inputs.index(task.data),
            "residual": None if task.residual is None else chain.subgraph.inputs.index(task.residual),
        }
        bias = np.zeros(conv.dst[1], np.float32) if conv.bias is None else conv.bias
        return Packed(
            numbers, {"weights": transformed_weights(depths.cut(conv.weights), way.tile), "bias": bias}
        )

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel; its shares read the same weights, and transform in memory of their own."""
        return _Kernel(packed, threads)


@dataclass(frozen=True)
class _Planes:
    """The third dimension, without the taps of the window that never see anything but padding."""

    inputs: int
    outputs: int
    first: int
    taps: int
    pad: int

    @property
    def products(self) -> int:
        """Taps that see a plane, summed over the planes of the result."""
        return sum(
            0 <= plane + tap - self.pad < self.inputs
            for plane in range(self.outputs)
            for tap in range(self.taps)
        )

    def cut(self, weights: Floats) -> Floats:
        """The weights as (O, I, taps, 3, 3), those of the taps that count."""
        return weights.reshape(*weights.shape[:2], -1, 3, 3)[:, :, self.first : self.first + self.taps]


def _planes(conv: Conv) -> _Planes:
    if len(conv.src) == 4:
        return _Planes(1, 1, 0, 1, 0)
    inputs, outputs, pad = conv.src[2], conv.dst[2], conv.pad_begin[0]
    first = max(0, pad - (outputs - 1))
    return _Planes(inputs, outputs, first, min(conv.weights.shape[2], inputs + pad) - first, pad - first)


def _checked(conv: Conv) -> Conv:
    """Raises UnsupportedError for a convolution that the kernel does not take."""
    if conv.groups > 1 or conv.transposed:
        raise UnsupportedError("grouped or transposed")
    if conv.weights.shape[-2:] != (3, 3):
        raise UnsupportedError(f"a window of {conv.weights.shape[-2]}x{conv.weights.shape[-1]}")
    if {*conv.strides, *conv.dilation} != {1}:
        raise UnsupportedError("windows or their elements at distances other than 1")
    if conv.src[1] % BLOCK or conv.dst[1] % BLOCK:
        raise UnsupportedError(f"{conv.src[1]} to {conv.dst[1]} channels, which are no multiples of {BLOCK}")
    if _planes(conv).products == 0:
        raise UnsupportedError("windows see nothing but padding")
    return conv


def _tiles(conv: Conv, tile: int) -> int:
    """Tiles of one plane of one image."""
    return -(-conv.dst[-2] // tile) * -(-conv.dst[-1] // tile)


def _chunk(conv: Conv, tile: int) -> tuple[int, int]:
    """Tiles and planes of the result that are transformed and multiplied at a time."""
    planes = _planes(conv)
    depths = min(planes.outputs, _CHUNK_DEPTHS)
    blocks = conv.src[1] * min(planes.inputs, depths + planes.taps - 1) + conv.dst[1] * depths
    fit = _CHUNK_BYTES // (4 * (tile + 2) ** 2 * blocks)
    return min(_tiles(conv, tile), max(1, fit // _ROWS) * _ROWS), depths


def _milliseconds(conv: Conv, way: _Way, threads: int) -> float:
    """A rough guess: products or their weights from memory, and the transforms."""
    inputs, outputs = conv.src[1], conv.dst[1]
    planes, tiles = _planes(conv), conv.dst[0] * _tiles(conv, way.tile)
    shares = 1 if way.split == WHOLE else threads
    rows = min(_tiles(conv, way.tile), _ROWS) / (
        shares if way.split == TILES and tiles < shares * _ROWS else 1
    )
    flop = 2 * way.points * tiles * planes.products * inputs * outputs
    multiply = flop / (1e6 * _GFLOP_PER_THREAD * shares * min(1.0, rows / 4))
    stream = 4 * way.points * planes.taps * inputs * outputs / (1e6 * _GB_PER_S)
    values = (
        planes.inputs * inputs / (1 if way.split == CHANNELS else shares) + planes.outputs * outputs / shares
    )
    transform = tiles * way.points * values / BLOCK * _CYCLES_PER_POINT / (1e6 * _GHZ)
    return max(multiply, stream) + transform


def transformed_weights(weights: Floats, tile: int) -> Floats:
    """(O, I, taps, 3, 3) as [point][panel of 32 outputs][tap][input][output], computed in float64."""
    outputs, inputs, taps = weights.shape[:3]
    both = np.kron(_WEIGHTS_OF[tile], _WEIGHTS_OF[tile])
    found = np.empty((len(both), math.prod(weights.shape[:3])), np.float32)
    for begin in range(0, outputs, _PANEL):
        panel = weights[begin : begin + _PANEL]
        points = panel.reshape(len(panel), inputs, taps, 9).astype(np.float64) @ both.T
        place = slice(begin * inputs * taps, (begin + len(panel)) * inputs * taps)
        found[:, place] = points.transpose(3, 2, 1, 0).reshape(len(both), -1)
    return found


_WHOLES = (
    "batch in_blocks out_blocks in_depth in_height in_width out_depth out_height out_width depth_taps pad_depth "
    "pad_top pad_left tile chunk_tiles chunk_depths by_channels shares"
).split()


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in _WHOLES),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


class _Buffers(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("src", "weights", "bias", "residual", "dst", "scratch")
    )


class _Kernel(NativeKernel):
    def __init__(self, packed: Packed, threads: int) -> None:
        super().__init__(threads)
        self._numbers: Mapping[str, Any] = packed.numbers
        self._weights, self._bias = packed.arrays["weights"], packed.arrays["bias"]
        self._shape = structure(_Shape, packed.numbers)

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """One step; a share that may run beside other kernels has scratch memory that is its own."""
        shares, residual = self._numbers["shares"], self._numbers["residual"]
        nbytes = scratch_bytes(self._numbers)
        scratch = [
            shared_scratch(self.threads, i, nbytes) if shares == self.threads else aligned(nbytes)
            for i in range(shares)
        ]
        buffers = [
            _Buffers(
                inputs[self._numbers["data"]].ctypes.data,
                self._weights.ctypes.data,
                self._bias.ctypes.data,
                None if residual is None else inputs[residual].ctypes.data,
                outputs[0].ctypes.data,
                each.ctypes.data,
            )
            for each in scratch
        ]
        keep = (self, tuple(inputs), tuple(outputs), tuple(scratch))
        return [shared_out("collage_winograd", self._shape, buffers, keep)]


def scratch_bytes(numbers: Mapping[str, Any]) -> int:
    """What a share transforms in: the input's points, and the products (``collage_winograd_scratch``)."""
    planes = min(numbers["chunk_depths"] + numbers["depth_taps"] - 1, numbers["in_depth"])
    inside = numbers["in_blocks"] * numbers["chunk_tiles"] | 1
    outside = numbers["out_blocks"] * numbers["chunk_tiles"] * numbers["chunk_depths"] | 1
    points = int(numbers["tile"] + 2) ** 2
    return 4 * BLOCK * points * int(planes * inside + outside)
