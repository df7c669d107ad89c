"""What cuBLASLt is to compute, in its own terms: matrices column by column, leading dimensions, batches, an epilogue.

A product of matrices that lie row by row is that of the swapped operands, column by column: the memory of L (M x K) is
that of a K x M matrix with the same leading dimension, and D^T = R^T L^T. So A is the right operand, B the left one,
and the bias, which belongs to the columns of D, is along the rows of what cuBLASLt sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product as every

from collage.backends.base import UnsupportedError
from collage.backends.chains.strided import Strided

__all__ = ["MOST_CALLS", "Activation", "Description", "Matrix", "describe"]

MOST_CALLS = 32
"""The most calls of a product whose batch cannot be described by one stride for each operand."""
_MOST = 2**31 - 1
_Axis = tuple[int, tuple[int, int, int]]
"""An axis of a batch: its extent, and the strides of A, B and D along it, in elements."""

Activation = str
""" "" for none, "relu", or "gelu", which is that by tanh."""


@dataclass(frozen=True)
class Matrix:
    """Matrices of a batch that lie column by column: ``leading`` elements from one column to the next."""

    rows: int
    columns: int
    leading: int
    batch_stride: int = 0


@dataclass(frozen=True)
class Description:
    """D = activation(alpha op(A) op(B) [+ C] [+ bias]), where op transposes, and C lies as D does.

    ``starts`` has, for each call, where A, B and D begin, in elements. The bias has an element for each row of D, and
    the matrices' dtype. ``tf32`` allows that factors of float32 are rounded to TF32.
    """

    dtype: str
    a: Matrix
    b: Matrix
    d: Matrix
    transposed_a: bool
    transposed_b: bool
    batch: int
    starts: tuple[tuple[int, int, int], ...]
    alpha: float = 1.0
    residual: bool = False
    bias: bool = False
    activation: Activation = ""
    tf32: bool = False

    @property
    def depth(self) -> int:
        """The extent that is summed over."""
        return self.a.rows if self.transposed_a else self.a.columns

    def needs(self) -> tuple[int, int, int]:
        """The elements of the buffers of A, B and D that are reached."""
        found = []
        for place, each in enumerate((self.a, self.b, self.d)):
            last = (self.batch - 1) * each.batch_stride + (each.columns - 1) * each.leading + each.rows
            found.append(last + max(starts[place] for starts in self.starts))
        return found[0], found[1], found[2]

    def problem(self) -> str:
        """What is wrong with the numbers, or ""."""
        m, n, k = self.d.rows, self.d.columns, self.depth
        if (m, k) != ((self.a.columns, self.a.rows) if self.transposed_a else (self.a.rows, self.a.columns)):
            return f"op(A) is not {m} x {k}"
        if (k, n) != ((self.b.columns, self.b.rows) if self.transposed_b else (self.b.rows, self.b.columns)):
            return f"op(B) is not {k} x {n}"
        for each in (self.a, self.b, self.d):
            if min(each.rows, each.columns) < 1 or each.leading < each.rows or each.batch_stride < 0:
                return f"a matrix of {each.rows} x {each.columns} with {each.leading} from column to column"
            if max(each.rows, each.columns, each.leading) > _MOST:
                return "a matrix is larger than 32-bit integers"
        if not self.starts or len(self.starts) > MOST_CALLS or min(map(min, self.starts)) < 0:
            return f"{len(self.starts)} calls"
        if self.tf32 and self.dtype != "float32":
            return f"TF32 of {self.dtype}"
        return "" if self.batch >= 1 else "no matrices"


def describe(left: Strided, right: Strided, dst: Strided, dtype: str) -> Description:
    """The product of ``left`` (batch..., M, K) and ``right`` (batch..., K, N), row by row. All have one rank.

    Raises UnsupportedError where no call describes how they lie.
    """
    a, transposed_a = _matrix(right)
    b, transposed_b = _matrix(left)
    d, transposed_d = _matrix(dst)
    if transposed_d:
        raise UnsupportedError("the rows of the result do not lie together")
    batch, starts = _batch(left, right, dst)
    count, (stride_a, stride_b, stride_d) = batch
    if len(starts) > MOST_CALLS:
        raise UnsupportedError(f"the matrices lie so that it takes {len(starts)} calls")
    found = Description(
        dtype,
        replace(a, batch_stride=stride_a),
        replace(b, batch_stride=stride_b),
        replace(d, batch_stride=stride_d),
        transposed_a,
        transposed_b,
        count,
        starts,
    )
    if problem := found.problem():
        raise UnsupportedError(f"cuBLASLt takes no such product: {problem}")
    return found


def _matrix(whole: Strided) -> tuple[Matrix, bool]:
    """The memory of matrices (..., R, C) as cuBLASLt sees it, and whether that is (R, C) and not (C, R)."""
    (rows, columns), (row, column) = whole.dims[-2:], whole.strides[-2:]
    if column == 1 or columns == 1:
        return Matrix(columns, rows, max(row if rows > 1 else 0, columns)), False
    if row == 1 or rows == 1:
        return Matrix(rows, columns, max(column, rows)), True
    raise UnsupportedError("neither rows nor columns of a matrix lie together")


def _batch(left: Strided, right: Strided, dst: Strided) -> tuple[_Axis, tuple[tuple[int, int, int], ...]]:
    """The axes that one stride describes, merged to one, and where each call begins along the others."""
    axes: list[_Axis] = []
    for axis in range(len(dst.dims) - 2):
        strides = [0 if each.dims[axis] == 1 else each.strides[axis] for each in (right, left, dst)]
        here: _Axis = dst.dims[axis], (strides[0], strides[1], strides[2])
        if here[0] == 1:
            continue
        if axes and all(outer == inner * here[0] for outer, inner in zip(axes[-1][1], here[1], strict=True)):
            axes[-1] = axes[-1][0] * here[0], here[1]
        else:
            axes.append(here)
    if not axes:
        return (1, (0, 0, 0)), ((0, 0, 0),)
    inside = max(axes, key=lambda each: each[0])
    outside = [each for each in axes if each is not inside]
    if math.prod(extent for extent, _ in outside) > MOST_CALLS:
        raise UnsupportedError("the matrices of the batch lie so that it takes many calls")
    starts = []
    for at in every(*(range(extent) for extent, _ in outside)):
        a, b, d = (sum(i * each[1][place] for i, each in zip(at, outside, strict=True)) for place in range(3))
        starts.append((a, b, d))
    return inside, tuple(starts)
