"""Direct convolution for groups of few channels and for single ones; see `direct_conv.cpp`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError, Variant
from collage.backends.native_kernels.algorithm import Algorithm, Packed, shared_out, structure
from collage.backends.native_kernels.convolution import SMALL_FLOP, in_layout, read_convolution
from collage.backends.onednn_kernels.chain import Chain, Floats
from collage.backends.onednn_kernels.conv import Conv
from collage.graph.dataflow import Array
from collage.graph.layout import BLOCK, Layout
from collage.native import NativeKernel, Step

ROWS, CHANNELS, WHOLE = "rows", "output channels", ""

_MOST_INPUTS = 32
_WIDTHS = (1, 3, 5, 7)
_MANY_WEIGHTS = 1 << 18
"""Bytes. 1024 channels of 7x7 in groups of 32 take 56 us split by channels and 71 by rows, 256 channels the same."""


class DirectConv(Algorithm):
    """Two or more groups of 1, 2, 4, 8, 16 or 32 channels; windows 1, 3, 5 or 7 wide."""

    name = "direct_conv"
    roots = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})

    def variants(self, chain: Chain, threads: int) -> Sequence[Variant]:
        """Both layouts with channels innermost, with the more even split; one thread alone for small work."""
        conv = read_convolution(chain).conv
        width_of(conv)
        splits = [_split(conv, threads)] if threads > 1 else []
        if threads == 1 or conv.flop < SMALL_FLOP:
            splits.append(WHOLE)
        layouts = Layout.BLOCKED, Layout.CHANNELS_LAST
        return [in_layout(chain, layout, split) for layout in layouts for split in splits]

    def pack(self, chain: Chain, variant: Variant, threads: int) -> Packed:
        """The shape of the kernel, weights in the order in which they are read, and the bias."""
        task = read_convolution(chain)
        conv = task.conv
        (layout,) = variant.outputs
        batch, channels, *_ = conv.dst
        spatial = {
            "in": _three(conv.src[2:], 1),
            "out": _three(conv.dst[2:], 1),
            "window": _three(conv.weights.shape[2:], 1),
            "stride": _three(conv.strides, 1),
            "pad": _three(conv.pad_begin, 0),
        }
        numbers = {
            "batch": batch,
            "channels": channels,
            "group_inputs": width_of(conv),
            "group_outputs": channels // conv.groups,
            **spatial,
            "from": _steps(conv.src[1], spatial["in"], layout),
            "to": _steps(channels, spatial["out"], layout),
            "blocked": layout is Layout.BLOCKED,
            "by_vectors": variant.split == CHANNELS,
            "shares": 1 if variant.split == WHOLE else threads,
            "low": task.low,
            "high": task.high,
            "data": chain.subgraph.inputs.index(task.data),
            "residual": None if task.residual is None else chain.subgraph.inputs.index(task.residual),
        }
        bias = np.zeros(-channels % BLOCK + channels, np.float32)
        if conv.bias is not None:
            bias[:channels] = conv.bias
        return Packed(numbers, {"weights": packed_weights(conv), "bias": bias})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel; its shares read the same weights."""
        return _Kernel(packed, threads)


def width_of(conv: Conv) -> int:
    """Input channels of a group as the kernel sees it. Raises UnsupportedError for what the kernel does not take."""
    ins, outs = conv.src[1] // conv.groups, conv.dst[1] // conv.groups
    if conv.transposed or conv.groups == 1 or ins > _MOST_INPUTS:
        raise UnsupportedError(f"{conv.groups} groups of {ins} channels")
    if any(each != 1 for each in conv.dilation):
        raise UnsupportedError("dilated")
    if conv.weights.shape[-1] not in _WIDTHS or conv.strides[-1] > 2:
        raise UnsupportedError(f"a window {conv.weights.shape[-1]} wide at every {conv.strides[-1]} columns")
    if ins == outs and ins in (1, 2, 4, 8):
        return 4 if ins == 2 else ins
    if ins % BLOCK == outs % BLOCK == 0:
        return ins
    raise UnsupportedError(f"groups of {ins} and {outs} channels")


def packed_weights(conv: Conv) -> Floats:
    """The weights as `direct_conv.h` has them, zeros where output and input are of no or of different groups."""
    width = width_of(conv)
    outputs, inputs = conv.dst[1], conv.src[1]
    ins, outs = inputs // conv.groups, outputs // conv.groups
    vector, block, exchange, rotation, lane = np.ogrid[
        : -(-outputs // BLOCK), : -(-width // BLOCK), : _exchanges(width), : 1 if width == 1 else 4, :BLOCK
    ]
    first = vector if width < BLOCK else vector * BLOCK // outs * (ins // BLOCK)
    source = (first + block) * BLOCK + (lane // 4 ^ exchange) * 4 + lane % 4
    target = vector * BLOCK + lane // 4 * 4 + (lane + rotation) % 4
    source, target = np.broadcast_arrays(source, target)
    group = target // outs
    inside = (source < inputs) & (target < outputs) & (source // ins == group)
    weights = conv.weights.reshape(outputs, ins, *_three(conv.weights.shape[2:], 1))
    found = weights[np.where(inside, target, 0), np.where(inside, source - group * ins, 0)]
    found[~inside] = 0
    return np.ascontiguousarray(found.transpose(0, 5, 6, 1, 2, 7, 3, 4))


def _exchanges(width: int) -> int:
    """How many 128 bits of a vector a group has; each of the result's sees them all."""
    return min(max(1, width // 4), 4)


def _split(conv: Conv, threads: int) -> str:
    """Channels where weights are many, for each core reads its own only; else the split that leaves less idle."""
    if conv.weights.nbytes >= _MANY_WEIGHTS:
        return CHANNELS
    rows, vectors = conv.dst[0] * math.prod(conv.dst[2:-1]), -(-conv.dst[1] // BLOCK)
    return min((ROWS, CHANNELS), key=lambda split: _longest(rows if split == ROWS else vectors, threads))


def _longest(units: int, threads: int) -> float:
    """The largest share, as a part of the whole."""
    return -(-units // threads) / units


def _three(numbers: Sequence[int], missing: int) -> tuple[int, ...]:
    return (*[missing] * (3 - len(numbers)), *numbers)


def _steps(channels: int, spatial: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """Floats from one batch, vector of channels, plane, row and pixel to the next."""
    planes, rows, columns = spatial
    pixel = BLOCK if layout is Layout.BLOCKED else channels
    row, plane = columns * pixel, rows * columns * pixel
    vector = planes * plane if layout is Layout.BLOCKED else BLOCK
    batch = planes * plane * (-(-channels // BLOCK) if layout is Layout.BLOCKED else 1)
    return batch, vector, plane, row, pixel


_Three = ctypes.c_int64 * 3
_WHOLES = "batch channels group_inputs group_outputs".split()


class _Steps(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("batch", "vector", "plane", "row", "pixel"))


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in _WHOLES),
        *((name, _Three) for name in ("in", "out", "window", "stride", "pad")),
        ("from", _Steps),
        ("to", _Steps),
        *((name, ctypes.c_int64) for name in ("blocked", "by_vectors", "shares")),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


class _Buffers(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("src", "weights", "bias", "residual", "dst"))


class _Kernel(NativeKernel):
    def __init__(self, packed: Packed, threads: int) -> None:
        super().__init__(threads)
        self._numbers: Mapping[str, Any] = packed.numbers
        self._weights, self._bias = packed.arrays["weights"], packed.arrays["bias"]
        self._shape = structure(_Shape, packed.numbers)

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """One step; the shares differ by number only."""
        residual = self._numbers["residual"]
        buffers = _Buffers(
            inputs[self._numbers["data"]].ctypes.data,
            self._weights.ctypes.data,
            self._bias.ctypes.data,
            None if residual is None else inputs[residual].ctypes.data,
            outputs[0].ctypes.data,
        )
        shares = [buffers] * self._numbers["shares"]
        return [shared_out("collage_direct_conv", self._shape, shares, (self, tuple(inputs), tuple(outputs)))]
