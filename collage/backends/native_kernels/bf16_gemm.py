"""Products with a constant matrix that is stored as bfloat16; see `bf16_gemm.cpp`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.chains.epilogue import read_epilogue
from collage.backends.native_kernels.algorithm import Algorithm, is_small
from collage.backends.native_kernels.gemm import COLUMNS, ROWS, WHOLE
from collage.backends.native_kernels.geometry import shape_struct
from collage.backends.native_kernels.kernel import SharedKernel
from collage.backends.native_kernels.limits import bf16_gemm_limits
from collage.backends.native_kernels.product import Product
from collage.backends.native_kernels.task import NativeTask
from collage.errors import ModuleFileError
from collage.graph.storage import (
    BF16,
    BLOCK,
    CHANNELS_LAST,
    PLAIN,
    PLAIN_BF16,
    Storage,
    is_narrow,
    narrowed,
    to_layout,
)
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.kernel_library import bf16_problem, has_bf16_dots
from collage.native.packed import Packed

WIDENED = "widened"
"""Says in a variant's split that the weights are widened and multiplied with float32 rows."""

_PANEL = 3
_TILE_ROWS = 8
_MOST_CHUNK = 128
_CHUNK_BYTES = 1 << 19
"""Bytes of rows that are multiplied with a panel, which has up to as many in the L2 cache again."""
FEW_ROWS = 16
"""Up to so many rows, memory sets the pace of multiplying widened weights, too."""


class Bf16Gemm(Algorithm):
    """Takes a matrix, or several with rows of the same length, times a constant one; and convolutions of single pixels.

    The rows of these are pixels with their channels.
    """

    name = "bf16_gemm"
    roots = frozenset({"matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"})
    precision = BF16

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """The splits of float32, each with float32 and bfloat16 data and results, and two kinds of arithmetic."""
        if problem := bf16_problem():
            raise UnsupportedError(problem)
        product, wide = product_of(task)
        narrow = narrowed(wide, BF16)
        kinds = [""] if has_bf16_dots() else []
        kinds += [WIDENED] if product.rows <= FEW_ROWS or not kinds else []
        return [
            Variant(inputs_of(task, product, source, target), (target,), words(split, kind), BF16)
            for split in splits_of(product, build)
            for kind in kinds
            for source in (wide, narrow)
            for target in (wide, narrow)
            if source == target or product.data != product.epilogue.residual
        ]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, the weights in the order in which they are read, and the bias."""
        (product, _), variant = product_of(task), build.variant
        depth, columns = product.matrix.shape
        split = variant.split.removesuffix(WIDENED).removesuffix(", ")
        shares = 1 if split == WHOLE else build.threads
        numbers = {
            "rows": product.rows,
            "depth": depth,
            "columns": columns,
            "row_chunk": row_chunk(depth),
            "shares": shares,
            "by_rows": split == ROWS,
            "widens": variant.split != split,
            "src_narrow": is_narrow(variant.inputs[task.chain.inputs.index(product.data)]),
            "dst_narrow": is_narrow(variant.outputs[0]),
            **task.numbers_of(product),
        }
        bias = np.zeros(columns + -columns % BLOCK, np.float32)
        if product.bias is not None:
            bias[:columns] = product.bias
        weights = packed_weights(product.weights, shares if split == COLUMNS else 1)
        return Packed(numbers, {"weights": weights, "bias": bias})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """A kernel whose shares read one array of weights. Raises ModuleFileError where this CPU cannot run it."""
        if problem := bf16_problem():
            raise ModuleFileError(f"{problem}: compile the model here.")
        if not packed.numbers["widens"] and not has_bf16_dots():
            raise ModuleFileError(
                "it has kernels for processors with AVX512-BF16, which this one lacks: compile the model here."
            )
        return SharedKernel(
            "collage_bf16_gemm",
            _Shape,
            packed,
            threads,
            limits=bf16_gemm_limits,
            constants=[packed.arrays["weights"], packed.arrays["bias"]],
            scratch_bytes=_scratch_bytes,
        )


def packed_weights(weights: Floats, shares: int) -> Floats:
    """Weights (K, N) as [share of the columns][panel of 48 columns][pair of k][block][column][2 of the pair], flat.

    They are rounded to bfloat16. Two of them, the first in the low half, are seen as one float32, as artifacts have it.
    """
    depth, columns = weights.shape
    pairs, blocks = -(-depth // 2), -(-columns // BLOCK)
    padded = np.zeros((2 * pairs, blocks * BLOCK), np.float32)
    padded[:depth, :columns] = weights
    rounded = to_layout(padded, PLAIN_BF16).view(np.uint16)
    parts = []
    for share in range(shares):
        begin, end = blocks * share // shares, blocks * (share + 1) // shares
        for block in range(begin, end, _PANEL):
            wide = min(_PANEL, end - block)
            panel = rounded[:, block * BLOCK : (block + wide) * BLOCK].reshape(pairs, 2, wide, BLOCK)
            parts.append(panel.transpose(0, 2, 3, 1).reshape(-1))
    return np.concatenate(parts).view(np.float32)


def row_chunk(depth: int) -> int:
    """The number of rows that are multiplied with a panel at a time, a multiple of a tile's."""
    chunk = _CHUNK_BYTES // (2 * depth) // _TILE_ROWS * _TILE_ROWS
    return max(_TILE_ROWS, min(chunk, _MOST_CHUNK))


def splits_of(product: Product, build: BuildOptions) -> list[str]:
    """How the work may be shared: by columns, so that each thread reads its part of the weights, or by rows."""
    threads = build.threads
    splits = []
    if threads > 1:
        splits += [COLUMNS] if product.matrix.shape[1] >= BLOCK * threads else []
        splits += [ROWS] if product.rows >= _TILE_ROWS * threads else []
    if not splits or is_small(product.flop, build):
        splits.append(WHOLE)
    return splits


def product_of(task: NativeTask) -> tuple[Product, Storage]:
    """The product, and the wide storage in which its rows lie one after another.

    Raises UnsupportedError for a convolution that is none.
    """
    chain, conv = task.chain, task.conv
    if conv is None:
        return task.product, PLAIN
    if conv.groups > 1 or conv.transposed or math.prod(conv.weights.shape[2:]) != 1:
        raise UnsupportedError("the windows have more than a pixel, or the convolution is grouped")
    if max(conv.strides) > 1 or any((*conv.pad_begin, *conv.pad_end)):
        raise UnsupportedError("the pixels are at distances, or there is padding")
    data = chain.root.inputs[0]
    if chain.viewed or chain.graph.is_constant(data):
        raise UnsupportedError("the result is reshaped, or the data is a constant")
    folded = task.folded
    rows = conv.dst[0] * math.prod(conv.dst[2:])
    matrix = conv.weights.reshape(conv.weights.shape[:2]).T
    epilogue = read_epilogue(chain, folded.epilogue, conv.dst)
    return Product(data, rows, matrix, folded.scale, folded.bias, epilogue), CHANNELS_LAST


def inputs_of(task: NativeTask, product: Product, source: Storage, target: Storage) -> tuple[Storage, ...]:
    """The storages of the inputs: the data's, and for a residual the result's."""
    return tuple(source if value == product.data else target for value in task.chain.inputs)


def words(split: str, kind: str) -> str:
    """The split and the kind of arithmetic in the words of a variant."""
    return ", ".join(filter(None, (split, kind)))


def _scratch_bytes(n: Mapping[str, Any]) -> int:
    rows: int = n["row_chunk"] * 2 * -(-n["depth"] // 2)
    return 4 * (_TILE_ROWS * _PANEL * BLOCK + rows)


_Shape = shape_struct(
    *("rows", "depth", "columns", "row_chunk", "shares", "by_rows"),
    *("widens", "src_narrow", "dst_narrow", "activation", "residual_first"),
)
"""``collage_bf16_gemm_shape``."""
