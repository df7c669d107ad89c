"""One description for all tensors that lie alike in memory.

The stride of an axis with one element moves nothing, so (1, 64, 1) with strides (64, 1, 1) and (64, 1, 64) lie alike:
plain and channels-last are the same there. oneDNN's kernels look at such strides when they say what they are for; its
cache of primitives does not, and answers for the one with what was made for the other. What a description gets would
then depend on what the process has made before: oneDNN 3.2 convolves 128 channels of one position with `ref:any` when
they are described as plain, with `brgconv_1x1` as channels-last, and with `brgconv_1x1` in both cases after the latter
was made once. A kernel that was measured could not be made again, nor weights be packed as a saved module has them.
"""

from __future__ import annotations

from dataclasses import replace

from collage.backends.chains.strided import Strided, ordered
from collage.backends.onednn_kernels.description import Description, axis_order
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
from collage.graph.storage import CHANNELS_LAST


def settled(operation: Operation) -> Operation:
    """The operation with descriptions that depend on nothing but where the elements lie.

    Convolutions, poolings and functions get channels-last ones wherever these are true of all their tensors: there are
    kernels for these where there are none for plain ones.
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
    span = max(
        (extent * stride for extent, stride in zip(dims, strides, strict=True) if extent != 1), default=1
    )
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
        replace(each, operand=operand(each.operand)) if isinstance(each, Binary) else each
        for each in post_ops
    )
