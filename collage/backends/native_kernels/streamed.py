"""What products have in common whose constant matrix is stored in fewer bits than float32; see `streamed.h`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.chains.epilogue import read_epilogue
from collage.backends.native_kernels.algorithm import is_small
from collage.backends.native_kernels.gemm import (
    COLUMNS,
    IN_ORDER,
    ROWS,
    TILE_ROWS,
    WHOLE,
    split_and_order,
)
from collage.backends.native_kernels.geometry import shape_struct
from collage.backends.native_kernels.product import NativeProduct
from collage.backends.native_kernels.task import NativeTask
from collage.errors import ModuleFileError
from collage.graph.dataflow import Array
from collage.graph.storage import BF16, BLOCK, CHANNELS_LAST, PLAIN, Storage, is_narrow, narrowed
from collage.kernel.options import BuildOptions
from collage.native.kernel_library import narrow_problem
from collage.native.packed import Packed

WIDENED = "widened"
"""Says in a variant's split that the weights are widened and multiplied with float32 rows."""
TILES = "tiles"
"""Says in a variant's split that the processor's matrix unit multiplies tiles."""
FEW_ROWS = 16
"""Up to so many rows, memory sets the pace of multiplying widened weights, too."""

PANEL = 3
"""Blocks of columns that are multiplied together."""
TILE_SUMS = TILE_ROWS * PANEL * BLOCK
"""The number of sums that a kernel keeps, of 4 bytes each."""
_MOST_CHUNK = 128
_CHUNK_BYTES = 1 << 19
"""Bytes of rows that are multiplied with a panel, which has up to as many in the L2 cache again."""

SHAPE = shape_struct(
    *("rows", "depth", "columns", "row_chunk", "shares", "by_rows"),
    *("widens", "src_narrow", "dst_narrow", "activation", "residual_first", "in_order"),
)
"""``collage_bf16_gemm_shape`` and ``collage_int8_gemm_shape``."""


def numbers_of(task: NativeTask, product: NativeProduct, build: BuildOptions) -> dict[str, Any]:
    """The numbers of ``SHAPE`` for the variant that is built."""
    variant = build.variant
    depth, columns = product.matrix.shape
    text, order = split_and_order(variant.split)
    split, kind = _split_and_kind(text)
    return {
        "rows": product.rows,
        "depth": depth,
        "columns": columns,
        "row_chunk": row_chunk(depth),
        "shares": 1 if split == WHOLE else build.threads,
        "by_rows": split == ROWS,
        "widens": kind == WIDENED,
        "in_order": order == IN_ORDER,
        "src_narrow": is_narrow(variant.inputs[task.chain.inputs.index(product.data)]),
        "dst_narrow": is_narrow(variant.outputs[0]),
        **task.numbers_of(product),
    }


def column_shares(numbers: Mapping[str, Any]) -> int:
    """The number of parts that the columns of the weights are shared in."""
    return 1 if numbers["by_rows"] else int(numbers["shares"])


def padded_bias(product: NativeProduct) -> Floats:
    """The bias, or zeros, up to the end of the last block of columns."""
    columns = product.matrix.shape[1]
    bias = np.zeros(columns, np.float32) if product.bias is None else product.bias
    return np.pad(bias, (0, -columns % BLOCK))


def panels_of(weights: Array, together: int, shares: int) -> Floats:
    """Weights (K, N) as [share of the columns][panel of 48 columns][``together`` k][block][column][1 of these], flat.

    As many of them as have 4 bytes, the first one lowest, are seen as one float32, as artifacts have it.
    """
    depth, columns = weights.shape
    blocks = -(-columns // BLOCK)
    padded = np.pad(weights, ((0, -depth % together), (0, -columns % BLOCK)))
    parts = []
    for share in range(shares):
        begin, end = blocks * share // shares, blocks * (share + 1) // shares
        for block in range(begin, end, PANEL):
            wide = min(PANEL, end - block)
            panel = padded[:, block * BLOCK : (block + wide) * BLOCK].reshape(-1, together, wide, BLOCK)
            parts.append(panel.transpose(0, 2, 3, 1).reshape(-1))
    return np.concatenate(parts).view(np.float32)


def row_chunk(depth: int) -> int:
    """The number of rows that are multiplied with a panel at a time, a multiple of a tile's."""
    chunk = _CHUNK_BYTES // (2 * depth) // TILE_ROWS * TILE_ROWS
    return max(TILE_ROWS, min(chunk, _MOST_CHUNK))


def splits_of(product: NativeProduct, build: BuildOptions) -> list[str]:
    """How the work may be shared: by columns, so that each thread reads its part of the weights, or by rows."""
    threads = build.threads
    splits = []
    if threads > 1:
        splits += [COLUMNS] if product.matrix.shape[1] >= BLOCK * threads else []
        splits += [ROWS] if product.rows >= TILE_ROWS * threads else []
    if not splits or is_small(product.flop, build):
        splits.append(WHOLE)
    return splits


def product_of(task: NativeTask) -> tuple[NativeProduct, Storage]:
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
    return NativeProduct(data, rows, matrix, folded.scale, folded.bias, epilogue), CHANNELS_LAST


def data_storages(wide: Storage) -> tuple[Storage, ...]:
    """The storages that the kernels read and write: ``wide``, and with AVX-512 the same in bfloat16."""
    return (wide,) if narrow_problem() else (wide, narrowed(wide, BF16))


def check_arithmetic(packed: Packed, has_dots: bool, instructions: str) -> None:
    """Raises ModuleFileError where this processor cannot run the kernel.

    ``has_dots`` tells whether it has dot products of the weights' dtype, which ``instructions`` compute.
    """
    numbers = packed.numbers
    problem = narrow_problem() if numbers["src_narrow"] or numbers["dst_narrow"] else ""
    if not problem and not numbers["widens"] and not has_dots:
        problem = f"it has kernels for processors with {instructions}, which this one lacks"
    if problem:
        raise ModuleFileError(f"{problem}: compile the model here.")


def inputs_of(
    task: NativeTask, product: NativeProduct, source: Storage, target: Storage
) -> tuple[Storage, ...]:
    """The storages of the inputs: the data's, and for a residual the result's."""
    return tuple(source if value == product.data else target for value in task.chain.inputs)


def _split_and_kind(text: str) -> tuple[str, str]:
    """What ``words`` has put together of these two."""
    split, _, kind = text.rpartition(", ")
    return (split, kind) if kind in (WIDENED, TILES) else (text, "")
