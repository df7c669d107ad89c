"""Products with a constant matrix that is stored in 8 bits; see `int8_gemm.cpp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.chains.int8_weights import INT8_DEPTH, quantised
from collage.backends.native_kernels.algorithm import ChainAlgorithm
from collage.backends.native_kernels.gemm import orders_of, with_order, words
from collage.backends.native_kernels.kernel import SharedKernel
from collage.backends.native_kernels.limits import int8_gemm_limits
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
from collage.graph.storage import BLOCK, INT8
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.kernel_library import has_int8_dots
from collage.native.packed import Packed

_FOUR = 4
"""Weights of so many successive rows of the matrix lie together."""


class Int8Gemm(ChainAlgorithm):
    """Takes what ``Bf16Gemm`` takes. Each column of the weights has a factor of its own.

    Each row of the data has a range of its own, too, which the kernel finds when it runs. So it needs no samples to
    tell the range of activations beforehand, and clips nothing that no sample has shown.
    """

    name = "int8_gemm"
    roots = frozenset({"matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"})
    precision = INT8

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """The splits of float32, with data and result both in float32 or in bfloat16, and two kinds of arithmetic.

        With AVX2 there is float32 data and widened weights only.
        """
        product, wide = product_of(task)
        if product.matrix.shape[0] > INT8_DEPTH:
            raise UnsupportedError(f"sums of more than {INT8_DEPTH} products may overflow")
        kinds = [""] if has_int8_dots() else []
        kinds += [WIDENED] if product.rows <= FEW_ROWS or not kinds else []
        return [
            Variant(inputs_of(task, product, storage, storage), (storage,), words(split, kind, order), INT8)
            for split in splits_of(product, build)
            for kind in kinds
            for order in orders_of(product.rows)
            for storage in data_storages(wide)
        ]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, the weights in the order in which they are read, and what belongs to columns."""
        product, _ = product_of(task)
        numbers = numbers_of(task, product, build)
        weights, scales = quantised(product.weights)
        padding = -weights.shape[1] % BLOCK
        arrays = {
            "weights": packed_weights(weights, column_shares(numbers)),
            "scales": np.pad(scales, (0, padding)),
            "sums": np.pad(weights.sum(0, dtype=np.int32), (0, padding)).view(np.float32),
            "bias": padded_bias(product),
        }
        return Packed(numbers, arrays)

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """A kernel whose shares read one array of weights. Raises ModuleFileError where this CPU cannot run it."""
        check_arithmetic(packed, has_int8_dots(), "AVX512-VNNI")
        return SharedKernel(
            "collage_int8_gemm",
            SHAPE,
            with_order(packed),
            threads,
            limits=int8_gemm_limits,
            constants=[packed.arrays[name] for name in ("weights", "scales", "sums", "bias")],
            scratch_bytes=_scratch_bytes,
        )


def packed_weights(weights: npt.NDArray[np.int8], shares: int) -> Floats:
    """Weights (K, N) as [share of the columns][panel of 48 columns][4 k][block][column][1 of the 4], flat.

    Four of them are seen as one float32, as artifacts have it.
    """
    return panels_of(weights, _FOUR, shares)


def _scratch_bytes(n: Mapping[str, Any]) -> int:
    length = n["row_chunk"] * _FOUR * -(-n["depth"] // _FOUR)
    return int(4 * (TILE_SUMS + 2 * n["row_chunk"]) + length * (4 if n["widens"] else 1))
