"""Reading a matrix product: its operands and its result, which may lie transposed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain
from collage.backends.chains.strided import FLOAT_BYTES, AxisRange, Strided, cut, dense
from collage.backends.chains.transposes import ProductChain, operand_view, result_view
from collage.graph.dataflow import Graph, Node

BATCH, ROWS, COLUMNS, WHOLE = "batch", "rows", "columns", ""
SMALL_FLOP = 20_000_000
"""Below this, one thread may do all of it."""


@dataclass(frozen=True)
class Product:
    """The shapes of ``left`` (batch..., M, K), ``right`` (batch..., K, N) and ``dst``, all of one rank.

    A constant matrix on the right makes it one product of all rows: the rank is 2.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    dst: tuple[int, ...]
    packs: bool
    """Whether the right operand is a constant."""

    @property
    def flop(self) -> int:
        """The number of floating-point operations."""
        return 2 * math.prod(self.dst) * self.left[-1]


def matmul_problem(graph: Graph, node: Node) -> str:
    """Why a matrix product cannot be taken, or ""."""
    if any(len(graph.type_of(v).shape) < 2 for v in node.inputs):
        return "an operand is a vector"
    if graph.is_constant(node.inputs[0]):
        return "the left operand is a constant"
    return ""


def read_product(graph: Graph, node: Node) -> Product:
    """The product of a node. Raises UnsupportedError when it is none that can be taken."""
    if problem := matmul_problem(graph, node):
        raise UnsupportedError(f"{node.op}: {problem}")
    left, right = (graph.type_of(v).shape for v in node.inputs)
    dst = graph.type_of(node.outputs[0]).shape
    packs = graph.is_constant(node.inputs[1])
    if len(right) == 2 and packs:
        rows = math.prod(left[:-1])
        return Product((rows, left[-1]), right, (rows, right[-1]), True)
    rank = len(dst)
    return Product(_padded(left, rank), _padded(right, rank), dst, packs)


@dataclass(frozen=True)
class Views:
    """How operands and result lie, and the values that the operands are read from."""

    left: Strided
    right: Strided
    dst: Strided
    values: tuple[int, int]


def views_of(chain: Chain, product: Product) -> Views:
    """Dense views, but for transposes around the product. Raises UnsupportedError for transposes that must be run."""
    node = chain.root
    left, right, dst = dense(product.left), dense(product.right), dense(product.dst)
    values = [node.inputs[0], node.inputs[1]]
    if isinstance(chain, ProductChain) and (chain.operands or chain.result_axes):
        if len(product.dst) != len(chain.shape):
            raise UnsupportedError("a product of all rows takes no transposed operands")
        views = [left, right]
        for place, value in enumerate(node.inputs):
            source = chain.operands.get(value)
            if source is None:
                continue
            if len(source.axes) != len(product.dst):
                raise UnsupportedError("a transposed operand has fewer axes than the result")
            views[place] = operand_view(chain.type_of(source.value).shape, source.axes)
            values[place] = source.value
        left, right = views
        dst = result_view(product.dst, chain.result_axes) if chain.result_axes else dst
    return Views(left, right, dst, (values[0], values[1]))


def splits(product: Product, threads: int) -> list[str]:
    """The ways of dividing it among the threads of a team: by columns, rows or batch, and not when it is small."""
    found: list[str] = []
    if threads > 1:
        if len(product.dst) > 2 and math.prod(product.dst[:-2]) > 1:
            found = [BATCH]
        else:
            found += [COLUMNS] if product.dst[-1] >= 16 * threads else []
            found += [ROWS] if product.dst[-2] >= 8 * threads else []
    if not found or product.flop < SMALL_FLOP:
        found.append(WHOLE)
    return found


def ranges(product: Product, split: str, threads: int) -> list[AxisRange | None]:
    """The part of the result that each share computes, or None for all of it."""
    dims = product.dst
    rank = len(dims)
    if split == WHOLE or threads == 1:
        return [None]
    if split == COLUMNS:
        unit = next((u for u in (64, 32, 16) if dims[-1] >= 2 * u * threads), 1)
        return [AxisRange(rank - 1, a, b) for a, b in cut(dims[-1], threads, unit)]
    if split == ROWS:
        return [AxisRange(rank - 2, a, b) for a, b in cut(dims[-2], threads)]
    if split == BATCH:
        axis = next((i for i in range(rank - 2) if dims[i] > 1), None)
        if axis is not None:
            return [AxisRange(axis, a, b) for a, b in cut(dims[axis], threads)]
    raise UnsupportedError(f"a matrix product is not split by {split!r}")


def part_of(whole: Strided, where: AxisRange | None) -> tuple[Strided, int]:
    """Part of a matrix or of a batch of them, and where it begins in bytes."""
    if where is None:
        return whole, 0
    dims = [*whole.dims]
    dims[where.axis] = where.stop - where.start
    strides = [*whole.strides]
    # Where a stride does not matter, it is as in a dense tensor, since oneDNN looks for that.
    for axis in reversed(range(len(dims) - 1)):
        if dims[axis] == 1:
            strides[axis] = dims[axis + 1] * strides[axis + 1]
    return Strided(tuple(dims), tuple(strides)), where.start * whole.strides[where.axis] * FLOAT_BYTES


def _padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (*[1] * (rank - len(shape)), *shape)
