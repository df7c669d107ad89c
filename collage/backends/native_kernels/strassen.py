"""Matrix products and pointwise convolutions by one step of Strassen's algorithm; see `strassen.cpp`.

It sums different rows, and different columns. The kernel brings all rows of the data to the same magnitude first, and
so does `strassen_scales.py` with the rows and columns of the weights.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.chains.epilogue import Epilogue
from collage.backends.native_kernels.algorithm import CHANNELS, ROWS, ChainAlgorithm, in_layout
from collage.backends.native_kernels.geometry import shape_struct, strides, three
from collage.backends.native_kernels.kernel import CKernel
from collage.backends.native_kernels.limits import strassen_limits
from collage.backends.native_kernels.strassen_scales import balanced
from collage.backends.native_kernels.task import NativeProduct, NativeTask
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST, PLAIN, Storage
from collage.kernel.options import BuildOptions, Variant
from collage.native.packed import Packed

NAME = "strassen"

_HALF = 2 * BLOCK
_PANEL = 2 * BLOCK
_ROWS = 14
"""The number of rows of the register tile."""
_MOST_ROWS = 8 * _ROWS
_SLICE = 1024
"""The most of the depth at a time."""
_FEW_ROWS = 128
"""Up to so many rows, each half of them is one chunk, so that the weights are read once."""

_LEAST_ROWS, _LEAST_DEPTH, _LEAST_COLUMNS, _LEAST_FLOP = 14, 128, 64, 10_000_000
"""Below these numbers, sums and results that are stored on the way cost what the eighth product saves."""
_LEAST_BALANCE = 32 / 3
"""The fewest rows of a matrix product, in units of the arithmetic for each byte that is read from memory.

Its weights are seven quarters of the matrix. Reading the other three quarters takes as long as an eighth of the
arithmetic of 12 times as many rows. With 480 GFLOP/s and 40 GB/s that is 144 rows; some of the reading is hidden. With
64 rows, the kernel gains 3% with weights in the caches (768x3072), and loses 5% with weights from memory.
"""


_Shape = shape_struct(
    *("batch", "in_blocks", "out_blocks", ("out", 3), ("from", 5), ("to", 5)),
    *("row_chunk", "slice", "by_channels", "shares", "activation", "residual_first"),
)
"""``collage_strassen_shape``."""


def scratch_bytes(numbers: Mapping[str, Any]) -> int:
    """The size of a share's register tiles and left factors (``collage_strassen_scratch``)."""
    factor = int(numbers["slice"] * numbers["row_chunk"]) | 1
    return 4 * BLOCK * (6 * _ROWS * 2 + 7 * factor)


@dataclass(frozen=True)
class _Pixels:
    """A product whose rows are pixels: ``out`` of each of ``batch`` images, at ``distances`` among those ``inside``."""

    product: NativeProduct
    batch: int
    out: tuple[int, int, int]
    distances: tuple[int, int, int]
    inside: tuple[int, int, int]


class _AnyStrassen(ChainAlgorithm):
    kernel = CKernel(
        *("collage_strassen", _Shape, strassen_limits, ("weights", "depth_scales", "column_scales", "bias")),
        scratch_bytes=scratch_bytes,
    )

    @abstractmethod
    def read(self, task: NativeTask, build: BuildOptions) -> _Pixels:
        """The task as a product. Raises UnsupportedError when it is none that the kernel takes."""

    @abstractmethod
    def layouts(self) -> Sequence[Storage]:
        """The layouts of everything that has pixels."""

    def reassociates(self, variant: Variant) -> bool:
        """Always, for it sums rows, columns and channels."""
        return variant.split.startswith(NAME)

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """Splits by rows of the product, where there are enough for a register tile each, and by columns."""
        product, threads = _checked(self.read(task, build)).product, build.threads
        splits = [ROWS] * (product.rows >= threads * _LEAST_ROWS)
        splits += [CHANNELS] * (product.matrix.shape[1] >= 2 * threads * _PANEL)
        names = [NAME] if threads == 1 or not splits else [f"{NAME}, {split}" for split in splits]
        return [self.variant(task, layout, name) for layout in self.layouts() for name in names]

    def variant(self, task: NativeTask, layout: Storage, name: str) -> Variant:
        """The variant with everything in that layout."""
        return in_layout(task, layout, name)

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, the right factors in the order in which they are read, and the bias."""
        pixels, variant = _checked(self.read(task, build)), build.variant
        product = pixels.product
        depth, columns = product.matrix.shape
        layout = variant.outputs[0] if variant.outputs else CHANNELS_LAST
        split = variant.split.removeprefix(NAME)
        slices = -(-depth // _SLICE)
        deep = -(-depth // (_HALF * slices))
        fit = max(1, build.speeds.blocking.strassen_bytes // (4 * 7 * deep * BLOCK * _ROWS)) * _ROWS
        chunk = -(-product.rows // 2) if product.rows <= _FEW_ROWS else min(_MOST_ROWS, fit)
        source = strides(depth, pixels.inside, layout)
        numbers = {
            "batch": pixels.batch,
            "in_blocks": depth // _HALF,
            "out_blocks": columns // _HALF,
            "out": pixels.out,
            "from": (*source[:2], *(n * s for n, s in zip(source[2:], pixels.distances, strict=True))),
            "to": strides(columns, pixels.out, layout),
            "row_chunk": chunk,
            "slice": deep,
            "by_channels": CHANNELS in split,
            "shares": build.threads if split else 1,
            **task.numbers_of(product),
        }
        bias = np.zeros(columns, np.float32) if product.bias is None else product.bias
        weights = product.weights
        if not np.isfinite(weights).all():
            raise UnsupportedError("the weights are not finite")
        scaled = balanced(weights)
        arrays = {
            "weights": right_factors(scaled.weights, deep * BLOCK),
            "column_scales": scaled.columns,
            "bias": bias,
        }
        return Packed(numbers, arrays if scaled.depth is None else {**arrays, "depth_scales": scaled.depth})


class StrassenConv(_AnyStrassen):
    """Takes convolutions of single pixels, also at distances, without padding, with channels in multiples of 32."""

    name = "strassen_conv"
    roots = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})

    def layouts(self) -> Sequence[Storage]:
        """Storages with channels innermost."""
        return BLOCKED, CHANNELS_LAST

    def read(self, task: NativeTask, build: BuildOptions) -> _Pixels:
        """The convolution, whose pixels are rows of the product."""
        convolution = task.convolution
        conv = convolution.conv
        if conv.groups > 1 or conv.transposed or math.prod(conv.weights.shape[2:]) != 1:
            raise UnsupportedError(
                "the windows have more than a pixel, or the convolution is grouped or transposed"
            )
        if any(pad > 0 for pad in (*conv.pad_begin, *conv.pad_end)):
            raise UnsupportedError("the convolution has padding")
        residual = convolution.residual
        product = NativeProduct(
            data=convolution.data,
            rows=conv.dst[0] * math.prod(conv.dst[2:]),
            matrix=conv.weights.reshape(conv.weights.shape[:2]).T,
            scale=convolution.scale,
            bias=conv.bias,
            epilogue=Epilogue(
                low=convolution.low, high=convolution.high, residual=residual, residual_first=True
            ),
        )
        return _Pixels(product, conv.dst[0], three(conv.dst[2:]), three(conv.strides), three(conv.src[2:]))


class StrassenGemm(_AnyStrassen):
    """Takes products with a constant matrix whose sides are multiples of 32."""

    name = "strassen_gemm"
    roots = frozenset({"matmul"})

    def layouts(self) -> Sequence[Storage]:
        """The plain layout, since rows of a matrix are pixels with their channels innermost."""
        return (PLAIN,)

    def variant(self, task: NativeTask, layout: Storage, name: str) -> Variant:
        """The variant with everything plain."""
        return Variant(split=name)

    def read(self, task: NativeTask, build: BuildOptions) -> _Pixels:
        """The product, whose rows are those of one matrix."""
        product = task.product
        if product.rows < least_rows(build):
            raise UnsupportedError(f"{product.rows} rows are few for Strassen's algorithm")
        rows = 1, 1, product.rows
        return _Pixels(product, 1, rows, (1, 1, 1), rows)


def least_rows(build: BuildOptions) -> int:
    """The fewest rows of a matrix product that is worth it on this machine: 128 where nothing is measured."""
    speeds = build.speeds
    return max(_LEAST_ROWS, round(_LEAST_BALANCE * speeds.team_gemm_gflops / speeds.memory.team_read_gbs))


def right_factors(weights: Floats, deep: int) -> Floats:
    """Weights (K, N) as [slice][panel of 32 of half the columns][product][``deep`` of half the depth][column], flat.

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


def _checked(pixels: _Pixels) -> _Pixels:
    product = pixels.product
    depth, columns = product.matrix.shape
    if depth % _HALF or columns % _HALF:
        raise UnsupportedError(f"a matrix of {depth}x{columns} does not fall into halves of whole blocks")
    small = depth < _LEAST_DEPTH or columns < _LEAST_COLUMNS or product.rows < _LEAST_ROWS
    if small or product.flop < _LEAST_FLOP:
        raise UnsupportedError(
            f"{product.rows} rows times {depth}x{columns} are little work for Strassen's algorithm"
        )
    return pixels
