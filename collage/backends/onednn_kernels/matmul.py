"""Matrix products: of a constant matrix, packed, and of two computed operands, batched or not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from collage.backends.base import UnsupportedError, Variant
from collage.backends.onednn_kernels.builder import Builder, Draft, Range, fold
from collage.backends.onednn_kernels.chain import After, Chain, Combine
from collage.backends.onednn_kernels.description import (
    FLOAT_BYTES,
    Description,
    Packed,
    Strided,
    cut,
    dense,
)
from collage.backends.onednn_kernels.operations import MatMul
from collage.backends.onednn_kernels.plan import BIAS, DST, SRC, WEIGHTS, Buffer, Input, Output
from collage.backends.onednn_kernels.transposes import ProductChain, operand_view, result_view
from collage.graph.dataflow import Graph, Node

BATCH, ROWS, COLUMNS, WHOLE = "batch", "rows", "columns", ""
SMALL_FLOP = 20_000_000
"""Below this, one thread may do all of it."""


@dataclass(frozen=True)
class Product:
    """``left`` (batch..., M, K), ``right`` (batch..., K, N) and ``dst``, all of one rank.

    A constant matrix on the right makes it one product of all rows: the rank is 2.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    dst: tuple[int, ...]
    packs: bool
    """Whether the right operand is a constant."""

    @property
    def flop(self) -> int:
        """Floating-point operations."""
        return 2 * math.prod(self.dst) * self.left[-1]


def matmul_problem(graph: Graph, node: Node) -> str:
    """Why a matrix product cannot be taken, or ""."""
    if any(len(graph.type_of(v).shape) < 2 for v in node.inputs):
        return "a vector operand"
    if graph.is_constant(node.inputs[0]):
        return "a constant on the left"
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
class _Views:
    """How operands and result lie, and the values that the operands are read from."""

    left: Strided
    right: Strided
    dst: Strided
    values: tuple[int, int]


def _views(chain: Chain, product: Product) -> _Views:
    node = chain.root
    left, right, dst = dense(product.left), dense(product.right), dense(product.dst)
    values = [node.inputs[0], node.inputs[1]]
    if isinstance(chain, ProductChain) and (chain.operands or chain.result_axes):
        if len(product.dst) != len(chain.shape):
            raise UnsupportedError("a product of all rows does not see them transposed")
        views = [left, right]
        for place, value in enumerate(node.inputs):
            source = chain.operands.get(value)
            if source is None:
                continue
            if len(source.axes) != len(product.dst):
                raise UnsupportedError("a transposed operand of fewer axes")
            views[place] = operand_view(chain.type_of(source.value).shape, source.axes)
            values[place] = source.value
        left, right = views
        dst = result_view(product.dst, chain.result_axes) if chain.result_axes else dst
    return _Views(left, right, dst, (values[0], values[1]))


def variants(chain: Chain, threads: int) -> list[Variant]:
    """All plain; split by columns, rows or batch."""
    product = read_product(chain.graph, chain.root)
    splits: list[str] = []
    if threads > 1:
        if len(product.dst) > 2 and math.prod(product.dst[:-2]) > 1:
            splits = [BATCH]
        else:
            splits += [COLUMNS] if product.dst[-1] >= 16 * threads else []
            splits += [ROWS] if product.dst[-2] >= 8 * threads else []
    if not splits or product.flop < SMALL_FLOP:
        splits.append(WHOLE)
    return [Variant(split=split) for split in splits]


def plan(chain: Chain, variant: Variant, threads: int) -> Draft:
    """The shares of the variant."""
    product = read_product(chain.graph, chain.root)
    views = _views(chain, product)
    rank = len(product.dst)
    root_shape = chain.type_of(chain.root.outputs[0]).shape
    folded = fold(chain, root_shape, len(root_shape) - 1, scales=product.packs)
    after = tuple(_seen(each, root_shape, product.dst) for each in folded.after)
    builder = Builder(chain, variant, product.dst, after)
    right = chain.constant(chain.root.inputs[1])
    if right is not None:
        right = right.reshape(product.right)
        if folded.scale is not None:
            right = right * folded.scale
    for where in _ranges(product, variant.split, threads):
        outer = None if where is None or where.axis == rank - 1 else where
        inner = None if where is None or where.axis == rank - 2 else where
        dst, at = _slice(views.dst, where)
        src, source = _operand(builder, views.values[0], views.left, outer)
        weights: Description
        buffer: Buffer
        if right is None:
            weights, buffer = _operand(builder, views.values[1], views.right, inner)
        else:
            share = right
            if inner is not None and right.shape[inner.axis] > 1:
                share = np.take(right, range(inner.start, inner.stop), inner.axis)
            weights, buffer = Packed(share.shape), builder.constant(share)
        arguments: list[tuple[int, Buffer]] = [(SRC, source), (WEIGHTS, buffer), (DST, Output(0, at))]
        bias = folded.bias
        described: Description | None = None
        if bias is not None:
            columns = where if where is not None and where.axis == rank - 1 else None
            share = bias if columns is None else bias[columns.start : columns.stop]
            described = dense((*[1] * (rank - 1), len(share)))
            arguments.append((BIAS, builder.constant(share)))
        builder.add(MatMul(src, weights, described, dst), arguments, where)
    return builder.draft()


def _ranges(product: Product, split: str, threads: int) -> list[Range | None]:
    dims = product.dst
    rank = len(dims)
    if split == WHOLE or threads == 1:
        return [None]
    if split == COLUMNS:
        unit = next((u for u in (64, 32, 16) if dims[-1] >= 2 * u * threads), 1)
        return [Range(rank - 1, a, b) for a, b in cut(dims[-1], threads, unit)]
    if split == ROWS:
        return [Range(rank - 2, a, b) for a, b in cut(dims[-2], threads)]
    if split == BATCH:
        axis = next((i for i in range(rank - 2) if dims[i] > 1), None)
        if axis is not None:
            return [Range(axis, a, b) for a, b in cut(dims[axis], threads)]
    raise UnsupportedError(f"a matrix product is not split by {split!r}")


def _operand(builder: Builder, value: int, whole: Strided, where: Range | None) -> tuple[Strided, Input]:
    """What a share reads of an operand; one that broadcasts along the axis is read whole."""
    cuts = where if where is not None and whole.dims[where.axis] > 1 else None
    description, offset = _slice(whole, cuts)
    return description, Input(builder.chain.subgraph.inputs.index(value), offset)


def _slice(whole: Strided, where: Range | None) -> tuple[Strided, int]:
    """Part of a matrix or of a batch of them, and where it begins in bytes."""
    if where is None:
        return whole, 0
    dims = [*whole.dims]
    dims[where.axis] = where.stop - where.start
    strides = [*whole.strides]
    for axis in reversed(
        range(len(dims) - 1)
    ):  # as if dense, where it does not matter: oneDNN looks for that
        if dims[axis] == 1:
            strides[axis] = dims[axis + 1] * strides[axis + 1]
    return Strided(tuple(dims), tuple(strides)), where.start * whole.strides[where.axis] * FLOAT_BYTES


def _seen(step: After, shape: tuple[int, ...], dst: tuple[int, ...]) -> After:
    """A post-op on the result of ``shape`` as one on the same result seen as ``dst``."""
    if not isinstance(step, Combine) or shape == dst:
        return step
    if step.shape == shape:
        return replace(step, shape=dst)
    if math.prod(step.shape[:-1]) == 1:
        return replace(step, shape=(1, step.shape[-1]))
    if math.prod(shape[:-2]) == 1:
        return replace(step, shape=step.shape[-2:])
    raise UnsupportedError(f"an operand of {step.shape} does not broadcast to {dst} rows")


def _padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (*[1] * (rank - len(shape)), *shape)
