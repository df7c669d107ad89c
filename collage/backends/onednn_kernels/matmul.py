"""Matrix products: of a constant matrix, packed, and of two computed operands, batched or not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import After, Chain, Combine
from collage.backends.chains.fold import fold
from collage.backends.chains.product import part_of, ranges, read_product, splits, views_of
from collage.backends.chains.strided import Range, Strided, dense
from collage.backends.onednn_kernels.builder import Builder, Draft
from collage.backends.onednn_kernels.description import Description, Packed
from collage.backends.onednn_kernels.operations import MatMul
from collage.backends.onednn_kernels.plan import BIAS, DST, SRC, WEIGHTS, Buffer, Input, Output
from collage.kernel.options import Variant


def variants(chain: Chain, threads: int) -> list[Variant]:
    """All plain; split by columns, rows or batch."""
    return [Variant(split=split) for split in splits(read_product(chain.graph, chain.root), threads)]


def plan(chain: Chain, variant: Variant, threads: int) -> Draft:
    """The shares of the variant."""
    product = read_product(chain.graph, chain.root)
    views = views_of(chain, product)
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
    for where in ranges(product, variant.split, threads):
        outer = None if where is None or where.axis == rank - 1 else where
        inner = None if where is None or where.axis == rank - 2 else where
        dst, at = part_of(views.dst, where)
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


def _operand(builder: Builder, value: int, whole: Strided, where: Range | None) -> tuple[Strided, Input]:
    """What a share reads of an operand; one that broadcasts along the axis is read whole."""
    cuts = where if where is not None and whole.dims[where.axis] > 1 else None
    description, offset = part_of(whole, cuts)
    return description, Input(builder.chain.subgraph.inputs.index(value), offset)


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
