"""Packing weights as the primitives of a plan want them, which is done once, at compile time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collage.backends.chains.strided import Strided, dense, ordered
from collage.backends.onednn_kernels.artifact import OneDnnArtifact
from collage.backends.onednn_kernels.description import Description, Packed, axis_order
from collage.backends.onednn_kernels.handles import Form, form_of, memory_desc
from collage.backends.onednn_kernels.library import library
from collage.backends.onednn_kernels.operations import (
    Binary,
    Combination,
    Convolution,
    Function,
    MatMul,
    Operation,
    Pooling,
    PostOp,
)
from collage.backends.onednn_kernels.plan import WEIGHTS, Plan, Share, Weight
from collage.backends.onednn_kernels.primitive import PrimitiveDesc, reorder
from collage.graph.dataflow import Array
from collage.graph.storage import CHANNELS_LAST
from collage.kernel.buffers import aligned_bytes


def settled(operation: Operation) -> Operation:
    """The operation with descriptions that depend on nothing but where the elements lie.

    Convolutions, poolings and functions get channels-last ones wherever these are true of all their tensors: there are
    kernels for these where there are none for plain ones.

    With one element on an axis, plain and channels-last lie alike. oneDNN's kernels look at such strides, but its cache
    of primitives does not: without one description for both, a kernel would depend on what the process made before.
    """
    if isinstance(operation, MatMul):
        src, weights, dst = map(_plain, (operation.src, operation.weights, operation.dst))
        found: Operation = replace(operation, src=src, weights=weights, dst=dst)
        return replace(found, post_ops=_post_ops(operation.post_ops, None))
    if not isinstance(operation, (Combination, Convolution, Function, Pooling)):
        return operation
    tensors = [operation.src, operation.dst]
    if isinstance(operation, Combination):
        tensors.append(operation.second)
    last = all(lies_channels_last(each) for each in tensors)
    describe = _channels_last if last else _plain
    found = replace(operation, src=describe(operation.src), dst=describe(operation.dst))
    if isinstance(found, Combination):
        found = replace(found, second=describe(found.second))
    return replace(found, post_ops=_post_ops(operation.post_ops, operation.dst.dims if last else None))


def lies_channels_last(description: Description) -> bool:
    """Whether a tensor of 3 axes and more lies like a dense one with the channels last."""
    if not isinstance(description, Strided) or len(description.dims) < 3:
        return False
    wanted = _channels_last(description)
    return isinstance(wanted, Strided) and all(
        extent == 1 or mine == other
        for extent, mine, other in zip(description.dims, description.strides, wanted.strides, strict=True)
    )


def _channels_last(description: Description) -> Description:
    dims = description.dims
    return replace(ordered(dims, axis_order(len(dims), CHANNELS_LAST)), dtype=description.dtype)


def _plain(description: Description) -> Description:
    """The description with strides for axes of one element as a dense tensor has them. Leading ones span everything.

    Before a last axis whose elements do not lie together, such an axis is what does: one column of a matrix by columns.
    """
    if not isinstance(description, Strided):
        return description
    dims, strides = description.dims, [*description.strides]
    first = next((axis for axis, extent in enumerate(dims) if extent != 1), len(dims))
    span = max((extent * stride for extent, stride in zip(dims, strides, strict=True) if extent != 1), default=1)
    inner = 1
    for axis in reversed(range(len(dims))):
        if dims[axis] == 1:
            column = axis == len(dims) - 2 and strides[-1] != 1
            strides[axis] = 1 if column else span if axis < first else inner
        inner = dims[axis] * strides[axis]
    return Strided(dims, tuple(strides), description.dtype)


def _post_ops(post_ops: tuple[PostOp, ...], last: tuple[int, ...] | None) -> tuple[PostOp, ...]:
    """The same with settled operands; those of dimensions ``last`` are described as channels-last."""

    def operand(each: Description) -> Description:
        return _channels_last(each) if each.dims == last and lies_channels_last(each) else _plain(each)

    return tuple(
        replace(each, operand=operand(each.operand)) if isinstance(each, Binary) else each for each in post_ops
    )


def pack(plan: Plan, arrays: Sequence[Array], threads: int) -> OneDnnArtifact:
    """The plan with its constants. Those of ``Packed`` tensors are reordered to what the primitives chose.

    Shares that read the same array in the same form read the same constant afterwards. Raises
    UnimplementedError for primitives that oneDNN does not have.
    """
    packed: dict[tuple[int, Form | None], int] = {}
    data: list[npt.NDArray[np.uint8]] = []

    def place(index: int, form: Form | None, desc: int) -> int:
        if (index, form) not in packed:
            packed[index, form] = len(data)
            array = np.ascontiguousarray(arrays[index], np.float32)
            data.append(array.reshape(-1).view(np.uint8) if form is None else _packed(array, form, desc))
        return packed[index, form]

    def of_share(share: Share) -> Share:
        share = replace(share, operation=settled(share.operation))
        desc = PrimitiveDesc(share.operation)
        arguments = []
        for each in share.arguments:
            if isinstance(each.buffer, Weight):
                packs = each.number == WEIGHTS and isinstance(_weights(share), Packed)
                form = desc.form(each.number) if packs else None
                md = desc.memory_desc(each.number)
                each = replace(each, buffer=Weight(place(each.buffer.index, form, md)))
            arguments.append(each)
        return replace(share, arguments=tuple(arguments))

    steps = tuple(tuple(of_share(share) for share in step) for step in plan.steps)
    found = library()
    forms = tuple(form for _, form in packed)
    return OneDnnArtifact(Plan(steps), threads, found.text, found.isa, forms, tuple(data))


def _weights(share: Share) -> Description | None:
    return getattr(share.operation, "weights", None)


def _packed(array: Array, form: Form, desc: int) -> npt.NDArray[np.uint8]:
    source = memory_desc(dense(array.shape))
    result = aligned_bytes(form.nbytes)
    result.fill(0)
    reorder(source.value, array.ctypes.data, desc, result.ctypes.data)
    assert form_of(desc) == form
    return result
