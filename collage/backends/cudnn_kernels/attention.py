"""Attention of many heads as one graph for cuDNN: softmax(scale Q K^T [+ mask]) V, in float16 or bfloat16.

Transposes that split heads and bring them together again cost nothing: they are strides of the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.attributes import integers
from collage.backends.chains.chain import FLOATS, Floats
from collage.backends.chains.strided import Strided
from collage.backends.chains.strided import dense as dense_view
from collage.backends.chains.transposes import TRANSPOSE, operand_view, result_view
from collage.backends.cuda_kernels.precisions import precision_of
from collage.backends.cudnn_kernels.graph import (
    ATTENTION,
    INPUT,
    OUTPUT,
    POINTWISE,
    PRODUCT,
    REDUCTION,
    SOFTMAX,
    Tensor,
    dense,
)
from collage.backends.cudnn_kernels.lowered import CudnnTask, Lowered, Lowering
from collage.backends.cudnn_kernels.neighbours import only_producer, only_user
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph, Node
from collage.graph.formats import StorageFormat
from collage.graph.storage import BF16, FP16

__all__ = ["AttentionTask", "attention_nodes", "is_attention", "read_attention"]

_SINCE_ATTENTION, _SINCE_SOFTMAX = 91300, 92000
"""The first versions of cuDNN with one operation for attention, and for softmax."""


@dataclass(frozen=True)
class AttentionOperand:
    """One of the kernel's inputs, seen with its axes as (batch, heads, rows, columns)."""

    place: int
    view: Strided


@dataclass(frozen=True)
class AttentionTask(CudnnTask):
    """The operands, of which ``keys`` are (batch, heads, columns, rows), the result, the scale and the mask.

    A constant mask is ``known``.
    """

    precisions: ClassVar = (FP16, BF16)
    exact: ClassVar = False

    queries: AttentionOperand
    keys: AttentionOperand
    values: AttentionOperand
    result: Strided
    scale: float
    mask: AttentionOperand | None
    known: Floats | None = field(default=None, compare=False)

    def lower(self, format: StorageFormat, precision: str) -> Sequence[Lowered]:
        """One operation where there is no mask, or else products with a softmax, which is one operation or several."""
        masked = self.mask is not None or self.known is not None
        parts = [self._in_parts(precision, together=each) for each in (True, False)]
        return parts if masked else (self._whole(precision), *parts)

    def _whole(self, precision: str) -> Lowered:
        lowering = Lowering(self.formats[0], precision)
        queries = self._operand(lowering, self.queries)
        turned = AttentionOperand(self.keys.place, _swapped(self.keys.view))
        keys, values = self._operand(lowering, turned), self._operand(lowering, self.values)
        scale = lowering.maker.scalar(self.scale, 4)
        lowering.maker.run(ATTENTION, (queries, keys, values, scale), self._result(lowering))
        return lowering.done(_SINCE_ATTENTION)

    def _in_parts(self, precision: str, *, together: bool) -> Lowered:
        lowering = Lowering(self.formats[0], precision)
        maker = lowering.maker
        queries, keys = self._operand(lowering, self.queries), self._operand(lowering, self.keys)
        shape = (*self.queries.view.dims[:3], self.keys.view.dims[3])
        at = maker.run(PRODUCT, (queries, keys), maker.virtual(shape, dense(shape)))
        at = maker.run(POINTWISE, (at, maker.scalar(self.scale, 4)), maker.like(at), "MUL")
        if (mask := self._mask(lowering)) is not None:
            at = maker.run(POINTWISE, (at, mask), maker.like(at), "ADD")
        weights = maker.virtual(shape, dense(shape), lowering.dtype)  # as the second product wants it
        if together:
            maker.run(SOFTMAX, (at,), weights)
        else:
            _softmax(lowering, at, weights)
        values = self._operand(lowering, self.values)
        maker.run(PRODUCT, (weights, values), self._result(lowering))
        return lowering.done(_SINCE_SOFTMAX if together else 90000)

    def _operand(self, lowering: Lowering, operand: AttentionOperand) -> int:
        view = operand.view
        return lowering.maker.add(Tensor(view.dims, view.strides, lowering.dtype, INPUT, operand.place))

    def _result(self, lowering: Lowering) -> int:
        return lowering.maker.add(Tensor(self.result.dims, self.result.strides, lowering.dtype, OUTPUT))

    def _mask(self, lowering: Lowering) -> int | None:
        if self.mask is not None:
            return self._operand(lowering, self.mask)
        return None if self.known is None else lowering.constant(self.known)


def _softmax(lowering: Lowering, at: int, output: int) -> None:
    """The softmax along the last axis in elementary operations."""
    maker = lowering.maker
    rows = (*maker.tensors[at].shape[:-1], 1)
    largest = maker.run(REDUCTION, (at,), maker.virtual(rows, dense(rows)), "MAX")
    below = maker.run(POINTWISE, (at, largest), maker.like(at), "SUB")
    powers = maker.run(POINTWISE, (below,), maker.like(at), "EXP")
    total = maker.run(REDUCTION, (powers,), maker.virtual(rows, dense(rows)), "ADD")
    maker.run(POINTWISE, (powers, total), output, "DIV")


def _swapped(view: Strided) -> Strided:
    *dims, rows, columns = view.dims
    *strides, row, column = view.strides
    return Strided((*dims, columns, rows), (*strides, column, row))


@dataclass(frozen=True)
class _Found:
    """The nodes of an attention without transposes around it: products, the softmax, and what is between them."""

    nodes: tuple[int, ...]
    scores: Node
    product: Node
    scale: float
    mask: int | None


def is_attention(subgraph: Subgraph) -> bool:
    """Whether there is a softmax between two products."""
    ops = subgraph.ops
    return "softmax" in ops and ops.count("matmul") == 2


def attention_nodes(graph: Graph, softmax: Node) -> Iterator[tuple[int, ...]]:
    """The attention around a softmax, if there is one: without the transposes that it can absorb, and with them."""
    try:
        found = _around(graph, softmax)
    except UnsupportedError:
        return
    yield found.nodes
    values = (*found.scores.inputs, found.product.inputs[1])
    more = {node.id for value in values if (node := _transpose_before(graph, value)) is not None}
    if (after := _transpose_after(graph, found.product)) is not None:
        more.add(after.id)
    if more:
        yield tuple(sorted({*found.nodes, *more}))


def read_attention(subgraph: Subgraph) -> AttentionTask:
    """The subgraph as attention. Raises UnsupportedError when it is none that cuDNN takes."""
    graph = subgraph.model.graph
    softmax = next(node for node in subgraph.operators if node.op == "nn.softmax")
    found = _around(graph, softmax)
    used = {*found.nodes}

    def operand(value: int) -> AttentionOperand:
        before = _transpose_before(graph, value)
        view = dense_view(graph.type_of(value).shape)
        if before is not None and before.id in subgraph.members:
            used.add(before.id)
            value = before.inputs[0]
            view = operand_view(graph.type_of(value).shape, _axes(graph, before))
        if value not in subgraph.inputs:
            raise UnsupportedError("an operand of attention is a constant, or is made inside")
        return AttentionOperand(subgraph.inputs.index(value), _lifted(view))

    queries, keys = (operand(value) for value in found.scores.inputs)
    values = operand(found.product.inputs[1])
    output = found.product.outputs[0]
    result = dense_view(graph.type_of(output).shape)
    after = _transpose_after(graph, found.product)
    if after is not None and after.id in subgraph.members:
        used.add(after.id)
        output = after.outputs[0]
        result = result_view(result.dims, _axes(graph, after))
    if used != {*subgraph.nodes} or subgraph.outputs != (output,):
        raise UnsupportedError("there is more than attention, or something inside is used outside")
    kinds = {graph.type_of(value).dtype for node in subgraph.operators for value in node.inputs}
    if len(kinds) > 1 or not kinds <= {*FLOATS}:
        raise UnsupportedError(f"attention of {' and '.join(sorted(kinds))}: libraries get one dtype at a time")
    (dtype,) = kinds
    mask: AttentionOperand | None = None
    known: Floats | None = None
    if found.mask is not None:
        shape = graph.type_of(found.mask).shape
        whole = (1,) * (4 - len(shape)) + shape
        if (array := graph.constants.get(found.mask)) is not None:
            known = np.asarray(array, np.float32).reshape(whole)
        else:
            mask = AttentionOperand(subgraph.inputs.index(found.mask), dense_view(whole))
    own = precision_of(dtype)
    return AttentionTask(queries, keys, values, _lifted(result), found.scale, mask, known, own=own)


def _around(graph: Graph, softmax: Node) -> _Found:
    """The products around a softmax along the last axis. Raises UnsupportedError where there are none."""
    shape = graph.type_of(softmax.outputs[0]).shape
    (axis,) = integers(softmax.attrs["axis"])
    if len(shape) not in (3, 4) or axis % len(shape) != len(shape) - 1:
        raise UnsupportedError("no softmax along the last of three or four axes")
    product = only_user(graph, softmax.outputs[0])
    if product is None or product.op != "matmul" or product.inputs[0] != softmax.outputs[0]:
        raise UnsupportedError("no product after the softmax")
    nodes, value = [softmax.id, product.id], softmax.inputs[0]
    scale, mask = 1.0, None
    while True:
        node = only_producer(graph, value)
        if node is None or graph.type_of(value).shape != shape:
            raise UnsupportedError("no product before the softmax")
        nodes.append(node.id)
        if node.op == "matmul":
            break
        left, right = node.inputs if len(node.inputs) == 2 else (value, value)
        number = graph.constants.get(right)
        if node.op in ("multiply", "divide") and number is not None and number.size == 1:
            factor = float(number.reshape(()))
            scale *= factor if node.op == "multiply" else 1 / factor
        elif node.op == "add" and mask is None and scale == 1.0:
            if graph.type_of(left).shape != shape or only_producer(graph, left) is None:
                left, right = right, left
            mask = right
        else:
            raise UnsupportedError(f"{node.op} before a softmax")
        value = left
    if any(len(graph.type_of(each).shape) != len(shape) for each in (*node.inputs, product.inputs[1])):
        raise UnsupportedError("operands of attention have other axes than the scores")
    return _Found(tuple(sorted(nodes)), node, product, scale, mask)


def _transpose_before(graph: Graph, value: int) -> Node | None:
    node = only_producer(graph, value)
    return node if node is not None and node.op == TRANSPOSE else None


def _transpose_after(graph: Graph, product: Node) -> Node | None:
    node = only_user(graph, product.outputs[0])
    return node if node is not None and node.op == TRANSPOSE else None


def _axes(graph: Graph, node: Node) -> tuple[int, ...]:
    rank = len(graph.type_of(node.inputs[0]).shape)
    axes = node.attrs["axes"]
    return tuple(reversed(range(rank))) if axes is None else tuple(a % rank for a in integers(axes))


def _lifted(view: Strided) -> Strided:
    """The view with four axes, of which the first may have one element."""
    more = 4 - len(view.dims)
    first = max(a * b for a, b in zip(view.dims, view.strides, strict=True))
    return Strided((1,) * more + view.dims, (first,) * more + view.strides)
