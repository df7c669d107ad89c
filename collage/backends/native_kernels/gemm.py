"""Products with a constant matrix that streams through the caches once; see `gemm.cpp`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Floats
from collage.backends.chains.ending import Ending, read_ending
from collage.backends.chains.fold import fold
from collage.backends.native_kernels.algorithm import Algorithm
from collage.backends.native_kernels.convolution import SMALL_FLOP
from collage.backends.native_kernels.kernel import SharedKernel
from collage.backends.native_kernels.limits import gemm_limits
from collage.graph.storage import BLOCK
from collage.kernel.options import Variant
from collage.native import NativeKernel
from collage.native.packed import Packed

COLUMNS, ROWS, WHOLE = "columns", "rows", ""

_PANEL = 3
_ROW_CHUNK = 128
_SLICE = 1024
"""Most of the depth at a time: a panel of 48 columns then is 200 kB, and 64 rows are 256 kB."""


@dataclass(frozen=True)
class GemmTask:
    """``weights`` are (K, N), with factors that follow the product; ``bias`` has the terms."""

    rows: int
    weights: Floats
    bias: Floats | None
    ending: Ending

    @property
    def flop(self) -> int:
        """Floating-point operations."""
        return 2 * self.rows * self.weights.size


class Gemm(Algorithm):
    """A matrix, or several with the same rows' length, times a constant one."""

    name = "gemm"
    roots = frozenset({"matmul"})

    def variants(self, chain: Chain, threads: int) -> Sequence[Variant]:
        """All plain; split by columns, so that each thread reads its part of the weights, or by rows."""
        task = read_gemm(chain)
        splits = []
        if threads > 1:
            splits += [COLUMNS] if task.weights.shape[1] >= BLOCK * threads else []
            splits += [ROWS] if task.rows >= 8 * threads else []
        if not splits or task.flop < SMALL_FLOP:
            splits.append(WHOLE)
        return [Variant(split=split) for split in splits]

    def pack(self, chain: Chain, variant: Variant, threads: int) -> Packed:
        """The shape of the kernel, the weights in the order in which they are read, and the bias."""
        task = read_gemm(chain)
        depth, columns = task.weights.shape
        slices = -(-depth // _SLICE)
        shares = 1 if variant.split == WHOLE else threads
        end = task.ending
        numbers = {
            "rows": task.rows,
            "depth": depth,
            "columns": columns,
            "row_chunk": _ROW_CHUNK,
            "slice": -(-depth // (slices * BLOCK)) * BLOCK,
            "shares": shares,
            "by_rows": variant.split == ROWS,
            "activation": end.activation,
            "residual_first": end.residual_first,
            "low": end.low,
            "high": end.high,
            "data": chain.subgraph.inputs.index(chain.root.inputs[0]),
            "residual": None if end.residual is None else chain.subgraph.inputs.index(end.residual),
        }
        bias = np.zeros(columns + -columns % BLOCK, np.float32)
        if task.bias is not None:
            bias[:columns] = task.bias
        weights = packed_weights(task.weights, numbers["slice"], shares if variant.split == COLUMNS else 1)
        return Packed(numbers, {"weights": weights, "bias": bias})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel; its shares read one array of weights."""
        return SharedKernel(
            "collage_gemm",
            _Shape,
            packed,
            threads,
            limits=gemm_limits,
            constants=[packed.arrays["weights"], packed.arrays["bias"]],
        )


def packed_weights(weights: Floats, deep: int, shares: int) -> Floats:
    """(K, N) as [share of the columns][slice of ``deep``][panel of 48 columns][k][column], flat."""
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


def read_gemm(chain: Chain) -> GemmTask:
    """The chain as a product. Raises UnsupportedError when it is none that the kernel takes."""
    left, right = chain.root.inputs
    weights = chain.constant(right)
    if weights is None or weights.ndim != 2:
        raise UnsupportedError("its right operand is no constant matrix")
    if chain.graph.is_constant(left):
        raise UnsupportedError("product of constants")
    shape = chain.type_of(chain.root.outputs[0]).shape
    folded = fold(chain, shape, len(shape) - 1)
    if folded.scale is not None:
        weights = weights * folded.scale
    return GemmTask(math.prod(shape[:-1]), weights, folded.bias, read_ending(chain, folded.after, shape))


_WHOLES = "rows depth columns row_chunk slice shares by_rows activation residual_first".split()


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in _WHOLES),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
    )
