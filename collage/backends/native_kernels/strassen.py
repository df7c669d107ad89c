"""Matrix products and pointwise convolutions by one step of Strassen's algorithm; see `strassen.cpp`.

It sums different rows, and different columns. The kernel brings all rows of the data to the same magnitude first, and
so does `strassen_scales.py` with the rows and columns of the weights.
"""

from __future__ import annotations

import ctypes
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Floats
from collage.backends.chains.ending import Ending
from collage.backends.native_kernels.algorithm import Algorithm
from collage.backends.native_kernels.convolution import in_layout, read_convolution
from collage.backends.native_kernels.gemm import read_gemm
from collage.backends.native_kernels.kernel import SharedKernel
from collage.backends.native_kernels.limits import strassen_limits
from collage.backends.native_kernels.strassen_scales import balanced
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST, PLAIN, Storage
from collage.kernel.options import Variant
from collage.native import NativeKernel
from collage.native.packed import Packed

NAME = "strassen"
ROWS, CHANNELS = "rows", "output channels"

_HALF = 2 * BLOCK
_PANEL = 2 * BLOCK
_ROWS = 14
"""Rows of the register tile."""
_MOST_ROWS = 8 * _ROWS
_CHUNK_BYTES = 450_000
"""Of the left factors: the right ones of a panel need as much of a core's L2 again."""

_SLICE = 1024
"""Most of the depth at a time."""
_FEW_ROWS = 128
"""Up to as many rows are one chunk, so that the weights are read once."""

_LEAST_ROWS, _LEAST_DEPTH, _LEAST_COLUMNS, _LEAST_FLOP = 14, 128, 64, 10_000_000
"""Below these, sums and results that are stored on the way cost what the eighth product saves."""
_LEAST_MATRIX_ROWS = 128
"""With 64, weights in the caches save 3% (768x3072), and weights from memory, seven quarters of them, lose 5%."""


@dataclass(frozen=True)
class _Task:
    """``weights`` are (K, N); ``source`` and ``target`` the distances in floats between elements of N, C, D, H, W."""

    batch: int
    out: tuple[int, int, int]
    strides: tuple[int, int, int]
    inside: tuple[int, int, int]
    weights: Floats
    bias: Floats | None
    ending: Ending
    data: int

    @property
    def rows(self) -> int:
        return self.batch * math.prod(self.out)

    @property
    def flop(self) -> int:
        return 2 * self.rows * self.weights.size


class _AnyStrassen(Algorithm):
    @abstractmethod
    def read(self, chain: Chain) -> _Task:
        """Raises UnsupportedError when the chain is none that the kernel takes."""

    @abstractmethod
    def layouts(self) -> Sequence[Storage]:
        """Of all that has pixels."""

    def reassociates(self, variant: Variant) -> bool:
        """Always: it sums rows, columns and channels."""
        return variant.split.startswith(NAME)

    def variants(self, chain: Chain, threads: int) -> Sequence[Variant]:
        """Split by rows of the product where there are enough for a register tile each, and by columns."""
        task = _checked(self.read(chain))
        splits = [ROWS] * (task.rows >= threads * _LEAST_ROWS)
        splits += [CHANNELS] * (task.weights.shape[1] >= 2 * threads * _PANEL)
        names = [NAME] if threads == 1 or not splits else [f"{NAME}, {split}" for split in splits]
        return [self.variant(chain, layout, name) for layout in self.layouts() for name in names]

    def variant(self, chain: Chain, layout: Storage, name: str) -> Variant:
        """Everything in that layout."""
        return in_layout(chain, layout, name)

    def pack(self, chain: Chain, variant: Variant, threads: int) -> Packed:
        """The shape of the kernel, the right factors in the order in which they are read, and the bias."""
        task, place = _checked(self.read(chain)), chain.subgraph.inputs.index
        depth, columns = task.weights.shape
        layout = variant.outputs[0] if variant.outputs else CHANNELS_LAST
        split = variant.split.removeprefix(NAME)
        end = task.ending
        slices = -(-depth // _SLICE)
        deep = -(-depth // (_HALF * slices))
        fit = max(1, _CHUNK_BYTES // (4 * 7 * deep * BLOCK * _ROWS)) * _ROWS
        chunk = -(-task.rows // 2) if task.rows <= _FEW_ROWS else min(_MOST_ROWS, fit)
        source = _steps(depth, task.inside, layout)
        numbers = {
            "batch": task.batch,
            "in_blocks": depth // _HALF,
            "out_blocks": columns // _HALF,
            "out": task.out,
            "from": (*source[:2], *(n * s for n, s in zip(source[2:], task.strides, strict=True))),
            "to": _steps(columns, task.out, layout),
            "row_chunk": chunk,
            "slice": deep,
            "by_channels": CHANNELS in split,
            "shares": threads if split else 1,
            "activation": end.activation,
            "residual_first": end.residual_first,
            "low": end.low,
            "high": end.high,
            "data": place(task.data),
            "residual": None if end.residual is None else place(end.residual),
        }
        bias = np.zeros(columns, np.float32) if task.bias is None else task.bias
        if not np.isfinite(task.weights).all():
            raise UnsupportedError("weights that are not finite")
        scaled = balanced(task.weights)
        arrays = {
            "weights": right_factors(scaled.weights, deep * BLOCK),
            "column_scales": scaled.columns,
            "bias": bias,
        }
        return Packed(numbers, arrays if scaled.depth is None else {**arrays, "depth_scales": scaled.depth})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel; its shares read the same weights, and work in memory of their own."""
        return SharedKernel(
            "collage_strassen",
            _Shape,
            packed,
            threads,
            limits=strassen_limits,
            constants=[packed.arrays.get(name) for name in _ARRAYS],
            scratch_bytes=scratch_bytes,
        )


class StrassenConv(_AnyStrassen):
    """Convolutions of single pixels, also at distances, without padding; channels in multiples of 32."""

    name = "strassen_conv"
    roots = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})

    def layouts(self) -> Sequence[Storage]:
        """Channels innermost."""
        return BLOCKED, CHANNELS_LAST

    def read(self, chain: Chain) -> _Task:
        """The pixels are rows of the product."""
        task = read_convolution(chain)
        conv = task.conv
        if conv.groups > 1 or conv.transposed or math.prod(conv.weights.shape[2:]) != 1:
            raise UnsupportedError("windows of more than a pixel, grouped or transposed")
        if any(pad > 0 for pad in (*conv.pad_begin, *conv.pad_end)):
            raise UnsupportedError("padding")
        return _Task(
            conv.dst[0],
            _three(conv.dst[2:]),
            _three(conv.strides),
            _three(conv.src[2:]),
            conv.weights.reshape(conv.weights.shape[:2]).T,
            conv.bias,
            Ending(low=task.low, high=task.high, residual=task.residual, residual_first=True),
            task.data,
        )


class StrassenGemm(_AnyStrassen):
    """Products with a constant matrix whose sides are multiples of 32."""

    name = "strassen_gemm"
    roots = frozenset({"matmul"})

    def layouts(self) -> Sequence[Storage]:
        """Rows of a matrix are pixels with their channels innermost."""
        return (PLAIN,)

    def variant(self, chain: Chain, layout: Storage, name: str) -> Variant:
        """All plain."""
        return Variant(split=name)

    def read(self, chain: Chain) -> _Task:
        """Rows of the product are those of the matrix."""
        task = read_gemm(chain)
        if task.rows < _LEAST_MATRIX_ROWS:
            raise UnsupportedError(f"{task.rows} rows are few for Strassen's algorithm")
        rows = 1, 1, task.rows
        return _Task(1, rows, (1, 1, 1), rows, task.weights, task.bias, task.ending, chain.root.inputs[0])


def right_factors(weights: Floats, deep: int) -> Floats:
    """(K, N) as [slice][panel of 32 of half the columns][product][``deep`` of half the depth][column], flat.

    Sums are made in float64.
    """
    depth, columns = weights.shape
    split = weights.astype(np.float64).reshape(2, depth // 2, 2, columns // 2)
    (b11, b12), (b21, b22) = ((split[i, :, 0], split[i, :, 1]) for i in (0, 1))
    t1, t3 = b12 - b11, b22 - b12
    t2 = b22 - t1
    factors = np.array([b11, b21, t2, t3, b21 - t2, t1, b22], np.float32)
    return np.concatenate(
        [
            factors[:, k : k + deep, start : start + _PANEL].reshape(-1)
            for k in range(0, depth // 2, deep)
            for start in range(0, columns // 2, _PANEL)
        ]
    )


def _checked(task: _Task) -> _Task:
    depth, columns = task.weights.shape
    if depth % _HALF or columns % _HALF:
        raise UnsupportedError(
            f"a matrix of {depth}x{columns}, which does not fall into halves of whole blocks"
        )
    if depth < _LEAST_DEPTH or columns < _LEAST_COLUMNS or task.rows < _LEAST_ROWS or task.flop < _LEAST_FLOP:
        raise UnsupportedError(
            f"{task.rows} rows times {depth}x{columns} are little work for Strassen's algorithm"
        )
    return task


def _three(numbers: Sequence[int]) -> tuple[int, int, int]:
    planes, rows, columns = (*[1] * (3 - len(numbers)), *numbers)
    return planes, rows, columns


def _steps(channels: int, spatial: tuple[int, int, int], layout: Storage) -> tuple[int, ...]:
    """Floats from one image, block of channels, plane, row and pixel to the next."""
    _, rows, columns = spatial
    pixel = BLOCK if layout == BLOCKED else channels
    block = math.prod(spatial) * BLOCK if layout == BLOCKED else BLOCK
    return math.prod(spatial) * channels, block, rows * columns * pixel, columns * pixel, pixel


_ARRAYS = "weights", "depth_scales", "column_scales", "bias"
_Three = ctypes.c_int64 * 3
_Steps = ctypes.c_int64 * 5


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "in_blocks", "out_blocks")),
        ("out", _Three),
        ("from", _Steps),
        ("to", _Steps),
        *(
            (name, ctypes.c_int64)
            for name in (
                "row_chunk",
                "slice",
                "by_channels",
                "shares",
                "activation",
                "residual_first",
            )
        ),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )


def scratch_bytes(numbers: Mapping[str, Any]) -> int:
    """What a share works in: register tiles and left factors (``collage_strassen_scratch``)."""
    factor = int(numbers["slice"] * numbers["row_chunk"]) | 1
    return 4 * BLOCK * (6 * _ROWS * 2 + 7 * factor)
