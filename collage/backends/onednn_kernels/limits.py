"""What must hold of a plan from a file before oneDNN gets it. Its primitives tell how large buffers must be."""

from __future__ import annotations

from collections.abc import Sequence

from collage.backends.chains.strided import Strided
from collage.backends.onednn_kernels.description import ITEM_BYTES, Blocked, Description
from collage.backends.onednn_kernels.handles import MAX_DIMS
from collage.backends.onednn_kernels.operations import Binary, Convolution, Operation, Pooling, Softmax
from collage.backends.onednn_kernels.plan import DST, Output, Plan, Share, Weight
from collage.core.typed import MalformedError, shown

_MOST_FLOATS = 1 << 44


def check_plan(plan: Plan, sizes: Sequence[int]) -> None:
    """Raises MalformedError for tensors that there cannot be, and for results that would be written to constants.

    ``sizes`` are those of the constants, in bytes.
    """
    for share in (share for step in plan.steps for share in step):
        _check_operation(share.operation)
        _check_arguments(share, len(sizes))


def _check_arguments(share: Share, constants: int) -> None:
    for each in share.arguments:
        buffer = each.buffer
        if isinstance(buffer, Weight):
            if not 0 <= buffer.index < constants:
                raise MalformedError(f"constant {buffer.index} of {constants}")
        elif buffer.index < 0 or buffer.offset < 0:
            raise MalformedError(f"a buffer {buffer.index} from {buffer.offset} on")
        if each.number == DST and not isinstance(buffer, Output):
            raise MalformedError("a result is written to what is read")


def _check_operation(operation: Operation) -> None:
    rank = len(operation.src.dims)
    tensors: list[Description | None] = [
        getattr(operation, name, None) for name in ("src", "dst", "weights", "bias", "second")
    ]
    tensors += [each.operand for each in operation.post_ops if isinstance(each, Binary)]
    for tensor in tensors:
        if tensor is not None:
            _check_tensor(tensor)
    if isinstance(operation, (Convolution, Pooling)):
        windows = [operation.strides, operation.dilation]
        windows += [operation.kernel] if isinstance(operation, Pooling) else []
        pads = [operation.pad_begin, operation.pad_end]
        if any(len(each) != rank - 2 for each in (*windows, *pads)) or any(min(each) < 1 for each in windows):
            raise MalformedError(f"windows of {windows} on {rank} axes")
        if any(abs(each) > _MOST_FLOATS for numbers in (*windows, *pads) for each in numbers):
            raise MalformedError("windows larger than any tensor")
    if isinstance(operation, Softmax) and not 0 <= operation.axis < rank:
        raise MalformedError(f"axis {operation.axis} of {rank}")


def _check_tensor(tensor: Description) -> None:
    if tensor.dtype not in ITEM_BYTES:
        raise MalformedError(f"a tensor of {shown(tensor.dtype)}")
    size = 1
    for extent in tensor.dims:
        size *= extent
    if not 1 <= len(tensor.dims) <= MAX_DIMS or min(tensor.dims) < 1 or size > _MOST_FLOATS:
        raise MalformedError(f"a tensor of {tensor.dims}")
    if isinstance(tensor, Blocked) and not 3 <= len(tensor.dims) <= 5:
        raise MalformedError(f"a tensor of {tensor.dims} in blocks")
    if isinstance(tensor, Strided):
        last = sum((extent - 1) * step for extent, step in zip(tensor.dims, tensor.strides, strict=False))
        if len(tensor.strides) != len(tensor.dims) or min(tensor.strides) < 0 or last > _MOST_FLOATS:
            raise MalformedError(f"a tensor of {tensor.dims} in steps of {tensor.strides}")
