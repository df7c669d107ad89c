"""Products with a constant matrix that is stored in fewer bits than float32; see `streamed.h` and `amx_gemm.cpp`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.chains.epilogue import read_epilogue
from collage.backends.chains.int8_weights import INT8_DEPTH, quantised
from collage.backends.native_kernels.algorithm import ROWS, WHOLE, ChainAlgorithm
from collage.backends.native_kernels.gemm import (
    IN_ORDER,
    TILE_ROWS,
    orders_of,
    split_and_order,
    splits_of,
    with_order,
    words,
)
from collage.backends.native_kernels.geometry import padded, shape_struct
from collage.backends.native_kernels.kernel import CKernel, SharedKernel
from collage.backends.native_kernels.limits import reduced_gemm_limits
from collage.backends.native_kernels.task import NativeProduct, NativeTask, check_pixels
from collage.errors import ModuleFileError
from collage.graph.dataflow import Array
from collage.graph.storage import (
    BF16,
    BLOCK,
    CHANNELS_LAST,
    INT8,
    PLAIN,
    PLAIN_BF16,
    Storage,
    is_narrow,
    narrowed,
    to_layout,
)
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.kernel_library import amx_problem, has_bf16_dots, has_int8_dots, narrow_problem
from collage.native.packed import Packed

WIDENED = "widened"
"""Says in a variant's split that the weights are widened and multiplied with float32 rows."""
TILES = "tiles"
"""Says in a variant's split that the processor's matrix unit multiplies tiles."""
TILE_SUMS = TILE_ROWS * 3 * BLOCK
"""The number of sums that a kernel keeps, of 4 bytes each."""

_FEW_ROWS = 16
"""Up to so many rows, memory sets the pace of multiplying widened weights, too."""
_PANEL = 3
"""Blocks of columns that are multiplied together."""
_AMX_ROWS, _AMX_PAIRS = 32, 16

_SHAPE = shape_struct(
    *("rows", "depth", "columns", "row_chunk", "shares", "by_rows"),
    *("widens", "src_narrow", "dst_narrow", "activation", "residual_first", "in_order"),
)
"""``collage_bf16_gemm_shape`` and ``collage_int8_gemm_shape``."""


class ReducedGemm(ChainAlgorithm):
    """Takes a matrix, or several with rows of the same length, times a constant one; and convolutions of single pixels.

    The rows of these are pixels with their channels.
    """

    roots = frozenset({"matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d"})
    together: ClassVar[int]
    """The number of weights that lie in 4 bytes."""
    most_depth: ClassVar[int] = 1 << 44
    """The longest sum."""
    mixed: ClassVar[bool] = True
    """Whether only one of data and result may be bfloat16."""

    @abstractmethod
    def kinds(self, rows: int) -> Sequence[str]:
        """The kinds of arithmetic for so many rows, in the words of a split. Raises UnsupportedError."""

    def orders(self, rows: int) -> Sequence[str]:
        """The orders in which so many rows may read the weights."""
        return orders_of(rows)

    @abstractmethod
    def arrays(self, product: NativeProduct, shares: int) -> Mapping[str, Floats]:
        """The kernel's arrays by name, in its order, with the weights shared by columns."""

    @abstractmethod
    def problem(self, numbers: Mapping[str, Any]) -> str:
        """Why this processor cannot run the kernel, or ""."""

    @abstractmethod
    def scratch_bytes(self, numbers: Mapping[str, Any]) -> int:
        """The size of a share's sums, and of rows that it copies (`streamed.h`)."""

    def row_chunk(self, depth: int) -> int:
        """The number of rows that are multiplied with a panel at a time."""
        return row_chunk(depth)

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """The splits of float32, each with all kinds of arithmetic, and with float32 and bfloat16 data and results."""
        product, wide = _product_of(task)
        if product.matrix.shape[0] > self.most_depth:
            raise UnsupportedError(f"sums of more than {self.most_depth} products may overflow")
        storages = (wide,) if narrow_problem() else (wide, narrowed(wide, BF16))
        mixes = self.mixed and product.data != product.epilogue.residual
        return [
            Variant(
                tuple(source if value == product.data else target for value in task.chain.inputs),
                (target,),
                words(split, kind, order),
                self.precision,
            )
            for split in splits_of(product, build)
            for kind in self.kinds(product.rows)
            for order in self.orders(product.rows)
            for source in storages
            for target in storages
            if source == target or (mixes and not order)
        ]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, the weights in the order in which they are read, and terms of the columns."""
        product, variant = _product_of(task)[0], build.variant
        depth, columns = product.matrix.shape
        text, order = split_and_order(variant.split)
        split, kind = _split_and_kind(text)
        shares = 1 if split == WHOLE else build.threads
        numbers = {
            "rows": product.rows,
            "depth": depth,
            "columns": columns,
            "row_chunk": self.row_chunk(depth),
            "shares": shares,
            "by_rows": split == ROWS,
            "widens": kind == WIDENED,
            "in_order": order == IN_ORDER,
            "src_narrow": is_narrow(variant.inputs[task.chain.inputs.index(product.data)]),
            "dst_narrow": is_narrow(variant.outputs[0]),
            **task.numbers_of(product),
        }
        return Packed(numbers, self.arrays(product, 1 if split == ROWS else shares))

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """A kernel whose shares read one array of weights. Raises ModuleFileError if this CPU cannot run it."""
        if problem := self.problem(packed.numbers):
            raise ModuleFileError(f"{problem}: compile the model here.")
        names = _ARRAYS[self.precision]
        limits = partial(reduced_gemm_limits, names=names, together=self.together, most_depth=self.most_depth)
        kernel = CKernel(f"collage_{self.name}", _SHAPE, limits, names, scratch_bytes=self.scratch_bytes)
        return SharedKernel(kernel, with_order(packed), threads)


_ARRAYS = {BF16: ("weights", "bias"), INT8: ("weights", "scales", "sums", "bias")}
"""The arrays of the kernels by precision, in the order in which C has them."""


class Bf16Gemm(ReducedGemm):
    """The products with matrices of bfloat16."""

    name = "bf16_gemm"
    precision = BF16
    together = 2

    def kinds(self, rows: int) -> Sequence[str]:
        """Dot products, and widened weights with few rows, or with AVX2.

        If there is a matrix unit, dot products are left to that (``AmxGemm``): it is faster even with one row.
        """
        kinds = [""] if has_bf16_dots() and amx_problem() else []
        return [*kinds, WIDENED] if rows <= _FEW_ROWS or not has_bf16_dots() else kinds

    def arrays(self, product: NativeProduct, shares: int) -> Mapping[str, Floats]:
        """The weights and the bias."""
        return {"weights": bf16_panels(product.weights, shares), "bias": _bias_of(product)}

    def problem(self, numbers: Mapping[str, Any]) -> str:
        """Why there are no such dot products here, or ""."""
        return _missing(numbers, has_bf16_dots(), "AVX512-BF16")

    def scratch_bytes(self, numbers: Mapping[str, Any]) -> int:
        """The size of the sums and of rows that are copied (`bf16_gemm.h`)."""
        rows: int = numbers["row_chunk"] * 2 * -(-numbers["depth"] // 2)
        return 4 * (TILE_SUMS + rows)


class AmxGemm(Bf16Gemm):
    """The products with matrices of bfloat16 on AMX, the processor's matrix unit, with weights in the same order."""

    name = "amx_gemm"

    def kinds(self, rows: int) -> Sequence[str]:
        """Tiles. Raises UnsupportedError without AMX."""
        if problem := amx_problem():
            raise UnsupportedError(problem)
        return [TILES]

    def orders(self, rows: int) -> Sequence[str]:
        """The usual one."""
        return [""]

    def problem(self, numbers: Mapping[str, Any]) -> str:
        """Why there is no AMX, or ""."""
        problem = amx_problem()
        return problem and f"it has kernels for processors with AMX, and {problem}"

    def row_chunk(self, depth: int) -> int:
        """Whole tiles, and more rows at a time than for dot products."""
        return _chunk(depth, _AMX_ROWS, most=256, nbytes=1 << 20)

    def scratch_bytes(self, numbers: Mapping[str, Any]) -> int:
        """The size of the sums, of the last pairs of a panel, and of rows that are copied (`amx_gemm.h`)."""
        row = _AMX_PAIRS * -(-numbers["depth"] // (2 * _AMX_PAIRS))
        floats: int = (_AMX_ROWS + _AMX_PAIRS) * _PANEL * BLOCK + numbers["row_chunk"] * row
        return 4 * floats


class Int8Gemm(ReducedGemm):
    """The products with matrices of 8 bits, of which each column has a factor of its own.

    Each row of the data has a range of its own, too, which the kernel finds when it runs. So it needs no samples to
    know the range of activations beforehand, and clips nothing that no sample has shown.
    """

    name = "int8_gemm"
    precision = INT8
    together = 4
    most_depth = INT8_DEPTH
    mixed = False

    def kinds(self, rows: int) -> Sequence[str]:
        """Dot products, and widened weights with few rows, or without dot products."""
        kinds = [""] if has_int8_dots() else []
        return [*kinds, WIDENED] if rows <= _FEW_ROWS or not kinds else kinds

    def arrays(self, product: NativeProduct, shares: int) -> Mapping[str, Floats]:
        """The weights, and of each column the factor, the sum of the weights, and the bias."""
        weights, scales = quantised(product.weights)
        columns = weights.shape[1]
        return {
            "weights": int8_panels(weights, shares),
            "scales": padded(scales, columns),
            "sums": np.pad(weights.sum(0, dtype=np.int32), (0, -columns % BLOCK)).view(np.float32),
            "bias": _bias_of(product),
        }

    def problem(self, numbers: Mapping[str, Any]) -> str:
        """Why there are no such dot products here, or ""."""
        return _missing(numbers, has_int8_dots(), "AVX512-VNNI")

    def scratch_bytes(self, numbers: Mapping[str, Any]) -> int:
        """The size of the sums, of the rows' ranges, and of rows that are rounded or copied (`int8_gemm.h`)."""
        length = numbers["row_chunk"] * 4 * -(-numbers["depth"] // 4)
        return int(4 * (TILE_SUMS + 2 * numbers["row_chunk"]) + length * (4 if numbers["widens"] else 1))


def row_chunk(depth: int) -> int:
    """The number of rows that are multiplied with a panel at a time, a multiple of a tile's."""
    return _chunk(depth, TILE_ROWS, most=128, nbytes=1 << 19)


def bf16_panels(weights: Floats, shares: int) -> Floats:
    """Weights (K, N), rounded to bfloat16, in panels of pairs of k, as ``_panels_of`` has them."""
    rounded = to_layout(np.ascontiguousarray(weights, np.float32), PLAIN_BF16).view(np.uint16)
    return _panels_of(rounded, 2, shares)


def int8_panels(weights: npt.NDArray[np.int8], shares: int) -> Floats:
    """Weights (K, N) of 8 bits in panels of four k, as ``_panels_of`` has them."""
    return _panels_of(weights, 4, shares)


def _panels_of(weights: Array, together: int, shares: int) -> Floats:
    """Weights (K, N) as [share of the columns][panel of 48 columns][``together`` k][block][column][1 of these], flat.

    As many of them as have 4 bytes, the first one lowest, are seen as one float32, as artifacts have it.
    """
    depth, columns = weights.shape
    blocks = -(-columns // BLOCK)
    filled = np.pad(weights, ((0, -depth % together), (0, -columns % BLOCK)))
    parts = []
    for share in range(shares):
        begin, end = blocks * share // shares, blocks * (share + 1) // shares
        for block in range(begin, end, _PANEL):
            wide = min(_PANEL, end - block)
            panel = filled[:, block * BLOCK : (block + wide) * BLOCK].reshape(-1, together, wide, BLOCK)
            parts.append(panel.transpose(0, 2, 3, 1).reshape(-1))
    return np.concatenate(parts).view(np.float32)


def _bias_of(product: NativeProduct) -> Floats:
    return padded(product.bias, product.matrix.shape[1])


def _chunk(depth: int, tile_rows: int, *, most: int, nbytes: int) -> int:
    """Rows in whole tiles, at most ``most``. A panel and so many bytes of rows stay in the L2 cache."""
    chunk = nbytes // (2 * depth) // tile_rows * tile_rows
    return max(tile_rows, min(chunk, most))


def _product_of(task: NativeTask) -> tuple[NativeProduct, Storage]:
    """The product, and the wide storage in which its rows lie one after another.

    Raises UnsupportedError for a convolution that is none.
    """
    chain, conv = task.chain, task.conv
    if conv is None:
        return task.product, PLAIN
    check_pixels(chain, conv)
    folded = task.folded
    rows = conv.dst[0] * math.prod(conv.dst[2:])
    matrix = conv.weights.reshape(conv.weights.shape[:2]).T
    epilogue = read_epilogue(chain, folded.epilogue, conv.dst)
    return NativeProduct(chain.root.inputs[0], rows, matrix, folded.scale, folded.bias, epilogue), CHANNELS_LAST


def _missing(numbers: Mapping[str, Any], has_dots: bool, instructions: str) -> str:
    """What of bfloat16 data, and of dot products by these instructions, this processor lacks for the kernel, or ""."""
    problem = narrow_problem() if numbers["src_narrow"] or numbers["dst_narrow"] else ""
    if problem or numbers["widens"] or has_dots:
        return problem
    return f"it has kernels for processors with {instructions}, which this one lacks"


def _split_and_kind(text: str) -> tuple[str, str]:
    """What ``words`` has put together of these two."""
    split, _, kind = text.rpartition(", ")
    return (split, kind) if kind in (WIDENED, TILES) else (text, "")
