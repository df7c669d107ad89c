"""Convolutions of few input channels, such as a network's first; see `shallow_conv.cpp`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Floats
from collage.backends.chains.conv import Conv
from collage.backends.native_kernels.algorithm import Algorithm
from collage.backends.native_kernels.convolution import SMALL_FLOP, Convolution, read_convolution
from collage.backends.native_kernels.kernel import SharedKernel, pieces_of_share
from collage.backends.native_kernels.limits import shallow_limits
from collage.backends.native_kernels.points import POINTS, Transforms, transforms
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST, PLAIN, Storage
from collage.kernel.options import Variant
from collage.native import NativeKernel
from collage.native.packed import Packed

ROWS, WHOLE = "rows", ""
WINOGRAD = "winograd over planes"

_MOST_INPUTS = 8
_PLANES = 4
_PANEL = 2 * BLOCK
_CHUNK_BYTES = 600_000
"""Of rows, transformed, and products: with the weights they fill half of a core's L2."""


class ShallowConv(Algorithm):
    """Up to 8 input channels in the plain layout, which may all be one window's: 3 to 64, 7x7, at every 2 pixels."""

    name = "shallow_conv"
    roots = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})

    def reassociates(self, variant: Variant) -> bool:
        """With Winograd's algorithm, which sums planes."""
        return variant.split.endswith(WINOGRAD)

    def variants(self, chain: Chain, threads: int) -> Sequence[Variant]:
        """From plain to either layout with channels innermost, direct or with Winograd's algorithm over planes."""
        splits = _splits(chain, threads)
        if _transforms(_read(chain).conv) is not None:
            splits = [f"{split}, {WINOGRAD}" if split else WINOGRAD for split in splits]
        return _variants(chain, splits)

    def direct_variants(self, chain: Chain, threads: int) -> Sequence[Variant]:
        """The same without Winograd's algorithm."""
        return _variants(chain, _splits(chain, threads))

    def pack(self, chain: Chain, variant: Variant, threads: int) -> Packed:
        """The shape of the kernel, the weights in the order in which they are read, transforms and bias."""
        task = _read(chain)
        conv = task.conv
        batch, channels, *_ = conv.dst
        inside, outside = _three(conv.src[2:], 1), _three(conv.dst[2:], 1)
        depth, rows, columns = _three(conv.weights.shape[2:], 1)
        stride = _three(conv.strides, 1)
        found = _transforms(conv) if self.reassociates(variant) else None
        planes = 1 if found is None else _PLANES
        if found is None:
            found = Transforms(np.eye(depth), np.eye(depth), np.ones((1, depth)))
        points, seen = found.before.shape
        row_bytes = 4 * (
            points * conv.src[1] * stride[1] * outside[2] * stride[2]
            + (points if planes > 1 else 1) * channels * outside[2]
        )
        shares = threads if ROWS in variant.split else 1
        row_chunk = max(1, min(outside[1], _CHUNK_BYTES // row_bytes))
        chunks = batch * -(-outside[0] // planes) * outside[1] // row_chunk
        pieces = pieces_of_share(conv.flop / shares, chunks // shares) if shares > 1 else 1
        numbers = {
            "batch": batch,
            "channels": conv.src[1],
            "out_blocks": channels // BLOCK,
            "in": inside,
            "out": outside,
            "rows": rows,
            "columns": columns,
            "stride": stride,
            "pad": _three(conv.pad_begin, 0),
            "planes": planes,
            "seen": seen,
            "points": points,
            "row_chunk": row_chunk,
            **_distances(channels, outside, variant.outputs[0]),
            "shares": shares * pieces,
            "pieces": pieces,
            "low": task.low,
            "high": task.high,
            "data": chain.subgraph.inputs.index(task.data),
            "residual": None if task.residual is None else chain.subgraph.inputs.index(task.residual),
        }
        after = np.zeros((_PLANES, points))
        after[: len(found.after)] = found.after
        arrays = {
            "weights": packed_weights(conv.weights, found),
            "before": found.before,
            "after": after,
            "bias": np.zeros(channels, np.float32) if conv.bias is None else conv.bias,
        }
        return Packed(numbers, {name: np.asarray(array, np.float32) for name, array in arrays.items()})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel; its shares read the same weights, and work in memory of their own."""
        return SharedKernel(
            "collage_shallow_conv",
            _Shape,
            packed,
            threads,
            limits=shallow_limits,
            constants=[packed.arrays[name] for name in _ARRAYS],
            scratch_bytes=scratch_bytes,
        )


def packed_weights(weights: Floats, found: Transforms) -> Floats:
    """(O, I, planes, rows, columns) as [point][panel of 32 outputs][input][row][column][output], flat."""
    outputs, inputs = weights.shape[:2]
    window = weights.reshape(outputs, inputs, *_three(weights.shape[2:], 1)).astype(np.float64)
    points = np.einsum("pd,oidrc->pirco", found.weights, window)
    panels = [
        points[..., begin : begin + _PANEL].reshape(len(points), -1) for begin in range(0, outputs, _PANEL)
    ]
    return np.concatenate(panels, 1).astype(np.float32)


def _read(chain: Chain) -> Convolution:
    """The chain as a convolution. Raises UnsupportedError when it is none that the kernel takes."""
    task = read_convolution(chain)
    conv = task.conv
    if conv.groups > 1 or conv.transposed:
        raise UnsupportedError("grouped or transposed")
    if conv.src[1] > _MOST_INPUTS:
        raise UnsupportedError(f"{conv.src[1]} input channels are not few")
    if conv.dst[1] % BLOCK:
        raise UnsupportedError(f"{conv.dst[1]} output channels, which are no multiple of {BLOCK}")
    if any(each != 1 for each in conv.dilation):
        raise UnsupportedError("dilated")
    if conv.strides[-1] > 2:
        raise UnsupportedError(f"a window at every {conv.strides[-1]} columns")
    if len(conv.src) == 5 and conv.weights.shape[2] > 16:
        raise UnsupportedError(f"a window of {conv.weights.shape[2]} planes")
    return task


def _transforms(conv: Conv) -> Transforms | None:
    """Those over planes, where it is worth it."""
    if len(conv.src) != 5 or conv.strides[0] != 1 or conv.dst[2] < _PLANES:
        return None
    taps = conv.weights.shape[2]
    points = POINTS.get(_PLANES + taps - 2)
    return None if points is None or taps < 3 else transforms(points, _PLANES, taps)


def _splits(chain: Chain, threads: int) -> list[str]:
    splits = [ROWS] if threads > 1 else []
    if threads == 1 or _read(chain).conv.flop < SMALL_FLOP:
        splits.append(WHOLE)
    return splits


def _variants(chain: Chain, splits: Sequence[str]) -> list[Variant]:
    data, found = _read(chain).data, []
    for target in (BLOCKED, CHANNELS_LAST):
        inputs = tuple(PLAIN if each == data else target for each in chain.subgraph.inputs)
        found += [Variant(inputs, (target,), split) for split in splits]
    return found


def _three(numbers: Sequence[int], missing: int) -> tuple[int, ...]:
    return (*[missing] * (3 - len(numbers)), *numbers)


def _distances(channels: int, spatial: tuple[int, ...], layout: Storage) -> dict[str, int]:
    """Floats from one image, block of channels, plane, row and pixel of the result to the next."""
    pixel = BLOCK if layout == BLOCKED else channels
    block = math.prod(spatial) * BLOCK if layout == BLOCKED else BLOCK
    return {
        "to_batch": math.prod(spatial) * channels,
        "to_block": block,
        "to_plane": spatial[1] * spatial[2] * pixel,
        "to_row": spatial[2] * pixel,
        "to_pixel": pixel,
    }


_Three = ctypes.c_int64 * 3
_TO = ("to_batch", "to_block", "to_plane", "to_row", "to_pixel")


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "channels", "out_blocks")),
        *((name, _Three) for name in ("in", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "columns")),
        *((name, _Three) for name in ("stride", "pad")),
        *((name, ctypes.c_int64) for name in ("planes", "seen", "points", "row_chunk", *_TO, "shares")),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


_ARRAYS = "weights", "before", "after", "bias"


def scratch_bytes(numbers: Mapping[str, Any]) -> int:
    """What a share works in: transformed rows and products (``collage_shallow_conv_scratch``)."""
    width, points, chunk = int(numbers["out"][2]), int(numbers["points"]), int(numbers["row_chunk"])
    row_lines = -(-((width - 1) * numbers["stride"][2] + numbers["columns"]) // BLOCK)
    rows = (chunk - 1) * numbers["stride"][1] + numbers["rows"]
    point_lines = numbers["channels"] * rows * row_lines | 1
    product_lines = numbers["out_blocks"] * chunk * width | 1
    return 4 * BLOCK * int(points * point_lines + (points if numbers["planes"] > 1 else 1) * product_lines)
