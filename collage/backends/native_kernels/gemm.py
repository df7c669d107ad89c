"""Products with a constant matrix that streams through the caches once; see `gemm.cpp`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collage.backends.chains.chain import Floats
from collage.backends.native_kernels.algorithm import ChainAlgorithm, is_small
from collage.backends.native_kernels.geometry import shape_struct
from collage.backends.native_kernels.kernel import SharedKernel
from collage.backends.native_kernels.limits import gemm_limits
from collage.backends.native_kernels.task import NativeTask
from collage.graph.storage import BLOCK
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.packed import Packed

COLUMNS, ROWS, WHOLE = "columns", "rows", ""

_PANEL = 3
_ROW_CHUNK = 128


class Gemm(ChainAlgorithm):
    """Takes a matrix, or several with rows of the same length, times a constant one."""

    name = "gemm"
    roots = frozenset({"matmul"})

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """Plain variants, split by columns, so that each thread reads its part of the weights, or by rows."""
        product, threads = task.product, build.threads
        splits = []
        if threads > 1:
            splits += [COLUMNS] if product.matrix.shape[1] >= BLOCK * threads else []
            splits += [ROWS] if product.rows >= 8 * threads else []
        if not splits or is_small(product.flop, build):
            splits.append(WHOLE)
        return [Variant(split=split) for split in splits]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, the weights in the order in which they are read, and the bias."""
        product, variant = task.product, build.variant
        depth, columns = product.matrix.shape
        slices = -(-depth // build.speeds.blocking.gemm_depth)
        deep = -(-depth // (slices * BLOCK)) * BLOCK
        shares = 1 if variant.split == WHOLE else build.threads
        numbers = {
            "rows": product.rows,
            "depth": depth,
            "columns": columns,
            "row_chunk": _ROW_CHUNK,
            "slice": deep,
            "shares": shares,
            "by_rows": variant.split == ROWS,
            **task.numbers_of(product),
        }
        bias = np.zeros(columns + -columns % BLOCK, np.float32)
        if product.bias is not None:
            bias[:columns] = product.bias
        parts = shares if variant.split == COLUMNS else 1
        weights = packed_weights(product.weights, deep, parts)
        return Packed(numbers, {"weights": weights, "bias": bias})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """A kernel whose shares read one array of weights."""
        return SharedKernel(
            "collage_gemm",
            _Shape,
            packed,
            threads,
            limits=gemm_limits,
            constants=[packed.arrays["weights"], packed.arrays["bias"]],
        )


def packed_weights(weights: Floats, deep: int, shares: int) -> Floats:
    """Weights (K, N) as [share of the columns][slice of ``deep``][panel of 48 columns][k][column], flat."""
    depth, columns = weights.shape
    blocks = -(-columns // BLOCK)
    padded = np.zeros((depth, blocks * BLOCK), np.float32)
    padded[:, :columns] = weights
    parts = []
    for share in range(shares):
        begin, end = blocks * share // shares, blocks * (share + 1) // shares
        for k in range(0, depth, deep):
            for block in range(begin, end, _PANEL):
                panel = padded[k : k + deep, block * BLOCK : min(block + _PANEL, end) * BLOCK]
                parts.append(panel.reshape(-1))
    return np.concatenate(parts)


_Shape = shape_struct(
    *("rows", "depth", "columns", "row_chunk", "slice"),
    *("shares", "by_rows", "activation", "residual_first"),
)
"""``collage_gemm_shape``."""
