"""Matrix products: of a constant matrix, packed, and of two computed operands, batched or not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Combine, EpilogueOp
from collage.backends.chains.linear_fold import Folded, fold
from collage.backends.chains.product import (
    Product,
    Views,
    part_of,
    ranges,
    read_product,
    splits,
    views_of,
)
from collage.backends.chains.strided import AxisRange, Strided, dense
from collage.backends.chains.transposes import ProductChain, read_product_chain
from collage.backends.onednn_kernels.builder import Draft, StepBuilder
from collage.backends.onednn_kernels.description import Description, Packed
from collage.backends.onednn_kernels.operations import MatMul
from collage.backends.onednn_kernels.plan import BIAS, DST, SRC, WEIGHTS, Buffer, Input, Output
from collage.kernel.options import Variant

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph


@dataclass(frozen=True)
class ProductTask:
    """A product, its epilogue, and transposes around it."""

    chain: ProductChain
    product: Product

    @cached_property
    def views(self) -> Views:
        """How operands and result lie. Raises UnsupportedError for transposes that the product cannot do without."""
        return views_of(self.chain, self.product)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the product's result in the model."""
        return self.chain.type_of(self.chain.root.outputs[0]).shape

    @cached_property
    def folded(self) -> Folded:
        """The epilogue, whose linear part is split off."""
        return fold(self.chain, self.shape, len(self.shape) - 1, scales=self.product.packs)


def read(subgraph: Subgraph) -> ProductTask:
    """The subgraph as a product. Raises UnsupportedError when it is none."""
    chain = subgraph.parsed(read_product_chain)
    return ProductTask(chain, read_product(chain.graph, chain.root))


def variants(task: ProductTask, threads: int) -> list[Variant]:
    """Plain variants, split by columns, rows or batch."""
    return [Variant(split=split) for split in splits(task.product, threads)]


def plan(task: ProductTask, variant: Variant, threads: int) -> Draft:
    """The shares of the variant."""
    chain, product, views, folded = task.chain, task.product, task.views, task.folded
    rank = len(product.dst)
    epilogue = tuple(_seen(each, task.shape, product.dst) for each in folded.epilogue)
    builder = StepBuilder(chain, variant, product.dst, epilogue)
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


def _operand(builder: StepBuilder, value: int, whole: Strided, where: AxisRange | None) -> tuple[Strided, Input]:
    """The part of an operand that a share reads. One that broadcasts along the axis is read whole."""
    cuts = where if where is not None and whole.dims[where.axis] > 1 else None
    description, offset = part_of(whole, cuts)
    return description, Input(builder.chain.inputs.index(value), offset)


def _seen(op: EpilogueOp, shape: tuple[int, ...], dst: tuple[int, ...]) -> EpilogueOp:
    """A post-op on the result of ``shape`` as one on the same result seen as ``dst``."""
    if not isinstance(op, Combine) or shape == dst:
        return op
    if op.shape == shape:
        return replace(op, shape=dst)
    if math.prod(op.shape[:-1]) == 1:
        return replace(op, shape=(1, op.shape[-1]))
    if math.prod(shape[:-2]) == 1:
        return replace(op, shape=op.shape[-2:])
    raise UnsupportedError(f"an operand of {op.shape} does not broadcast to {dst} rows")
