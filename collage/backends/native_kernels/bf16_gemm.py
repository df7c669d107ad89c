"""Products with a constant matrix that is stored as bfloat16; see `bf16_gemm.cpp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.backends.chains.chain import Floats
from collage.backends.native_kernels.algorithm import ChainAlgorithm
from collage.backends.native_kernels.gemm import orders_of, with_order, words
from collage.backends.native_kernels.kernel import SharedKernel
from collage.backends.native_kernels.limits import bf16_gemm_limits
from collage.backends.native_kernels.streamed import (
    FEW_ROWS,
    SHAPE,
    TILE_SUMS,
    WIDENED,
    check_arithmetic,
    column_shares,
    data_storages,
    inputs_of,
    numbers_of,
    padded_bias,
    panels_of,
    product_of,
    splits_of,
)
from collage.backends.native_kernels.task import NativeTask
from collage.graph.storage import BF16, PLAIN_BF16, to_layout
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.kernel_library import amx_problem, has_bf16_dots
from collage.native.packed import Packed


class Bf16Gemm(ChainAlgorithm):
    """Takes a matrix, or several with rows of the same length, times a constant one; and convolutions of single pixels.

    The rows of these are pixels with their channels.
    """

    name = "bf16_gemm"
    roots = frozenset({"matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"})
    precision = BF16

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """The splits of float32, each with float32 and bfloat16 data and results, and two kinds of arithmetic.

        With AVX2 there is float32 data and widened weights only. Where there is a matrix unit, dot products are left to
        that (``AmxGemm``): it is faster even with one row.
        """
        rows = product_of(task)[0].rows
        kinds = [""] if has_bf16_dots() and amx_problem() else []
        kinds += [WIDENED] if rows <= FEW_ROWS or not has_bf16_dots() else []
        return self.of_kinds(kinds, orders_of(rows), task, build)

    @staticmethod
    def of_kinds(
        kinds: Sequence[str], orders: Sequence[str], task: NativeTask, build: BuildOptions
    ) -> Sequence[Variant]:
        """The variants with these kinds of arithmetic, and orders of reading the weights."""
        product, wide = product_of(task)
        storages = data_storages(wide)
        return [
            Variant(inputs_of(task, product, source, target), (target,), words(split, kind, order), BF16)
            for split in splits_of(product, build)
            for kind in kinds
            for order in orders
            for source in storages
            for target in storages
            if source == target or (product.data != product.epilogue.residual and not order)
        ]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, the weights in the order in which they are read, and the bias."""
        product, _ = product_of(task)
        numbers = numbers_of(task, product, build)
        weights = packed_weights(product.weights, column_shares(numbers))
        return Packed(numbers, {"weights": weights, "bias": padded_bias(product)})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """A kernel whose shares read one array of weights. Raises ModuleFileError where this CPU cannot run it."""
        check_arithmetic(packed, has_bf16_dots(), "AVX512-BF16")
        return self.kernel(packed, threads)

    def kernel(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel, on a processor that can run it."""
        return SharedKernel(
            f"collage_{self.name}",
            SHAPE,
            with_order(packed),
            threads,
            limits=bf16_gemm_limits,
            constants=[packed.arrays["weights"], packed.arrays["bias"]],
            scratch_bytes=self.scratch_bytes,
        )

    @staticmethod
    def scratch_bytes(numbers: Mapping[str, Any]) -> int:
        """The size of the sums and of rows that are copied (`bf16_gemm.h`)."""
        rows: int = numbers["row_chunk"] * 2 * -(-numbers["depth"] // 2)
        return 4 * (TILE_SUMS + rows)


def packed_weights(weights: Floats, shares: int) -> Floats:
    """Weights (K, N) as [share of the columns][panel of 48 columns][pair of k][block][column][2 of the pair], flat.

    They are rounded to bfloat16. Two of them, the first in the low half, are seen as one float32, as artifacts have it.
    """
    rounded = to_layout(np.ascontiguousarray(weights, np.float32), PLAIN_BF16).view(np.uint16)
    return panels_of(rounded, 2, shares)
