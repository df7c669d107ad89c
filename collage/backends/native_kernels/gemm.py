"""Products with a constant matrix that streams through the caches once; see `gemm.cpp`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collage.backends.chains.chain import Floats
from collage.backends.native_kernels.algorithm import COLUMNS, ROWS, WHOLE, ChainAlgorithm, is_small
from collage.backends.native_kernels.geometry import padded, shape_struct
from collage.backends.native_kernels.kernel import CKernel
from collage.backends.native_kernels.limits import gemm_limits
from collage.backends.native_kernels.task import NativeProduct, NativeTask
from collage.graph.storage import BLOCK
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.kernel_library import narrow_problem
from collage.native.packed import Packed

IN_ORDER = "in order"
"""Says in a variant's split that nothing is prefetched: the processor does that as it sees fit."""
TILE_ROWS = 8
"""Rows of a tile with AVX-512. So few read all weights once, and may read them in order; which is faster, and by how
much, differs between processors."""

ROW_CHUNK = 128
"""Rows that are multiplied with the weights at a time."""

_MOST_DEPTH = 1024
"""The most of the depth at a time: a panel of 48 columns has 200 kB then, and 64 rows have 256 kB."""

_PANEL = 3


_Shape = shape_struct(
    *("rows", "depth", "columns", "row_chunk", "slice"),
    *("shares", "by_rows", "activation", "residual_first", "in_order"),
)
"""``collage_gemm_shape``."""


class Gemm(ChainAlgorithm):
    """Takes a matrix, or several with rows of the same length, times a constant one."""

    name = "gemm"
    roots = frozenset({"matmul"})
    kernel = CKernel("collage_gemm", _Shape, gemm_limits, ("weights", "bias"))

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """Plain variants, with each split and each order of reading the weights."""
        orders = orders_of(task.product.rows)
        return [Variant(split=words(split, order)) for split in splits_of(task.product, build) for order in orders]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, the weights in the order in which they are read, and the bias."""
        product = task.product
        split, order = split_and_order(build.variant.split)
        depth, columns = product.matrix.shape
        deep = slice_depth(depth)
        shares = 1 if split == WHOLE else build.threads
        numbers = {
            "rows": product.rows,
            "depth": depth,
            "columns": columns,
            "row_chunk": ROW_CHUNK,
            "slice": deep,
            "shares": shares,
            "by_rows": split == ROWS,
            "in_order": order == IN_ORDER,
            **task.numbers_of(product),
        }
        weights = packed_weights(product.weights, deep, shares if split == COLUMNS else 1)
        return Packed(numbers, {"weights": weights, "bias": padded(product.bias, columns)})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel, also of an older artifact."""
        return super().load(with_order(packed), threads)


def splits_of(product: NativeProduct, build: BuildOptions) -> list[str]:
    """By columns, so that each thread reads its part of the weights, by rows, or all on one thread."""
    threads, splits = build.threads, []
    if threads > 1:
        splits += [COLUMNS] if product.matrix.shape[1] >= BLOCK * threads else []
        splits += [ROWS] if product.rows >= TILE_ROWS * threads else []
    return splits if splits and not is_small(product.flop, build) else [*splits, WHOLE]


def words(*parts: str) -> str:
    """How the work is shared, the kind of arithmetic, and the order of reading, in the words of a variant."""
    return ", ".join(filter(None, parts))


def split_and_order(text: str) -> tuple[str, str]:
    """The words without those for the order of reading, and these."""
    split, _, order = text.rpartition(", ")
    return (split, order) if order == IN_ORDER else (text, "")


def orders_of(rows: int) -> list[str]:
    """The orders in which so many rows may read the weights."""
    return ["", IN_ORDER] if rows <= TILE_ROWS and not narrow_problem() else [""]


def with_order(packed: Packed) -> Packed:
    """The same; artifacts that are older than the number prefetch."""
    return replace(packed, numbers={"in_order": 0, **packed.numbers})


def slice_depth(depth: int) -> int:
    """The depth of a slice, a multiple of 16: slices are as few as may be, and equal but for the last one."""
    slices = -(-depth // _MOST_DEPTH)
    return -(-depth // (slices * BLOCK)) * BLOCK


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
