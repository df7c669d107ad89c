"""A plan and its packed weights as bytes, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt

from collage.backends.chains.strided import Strided
from collage.backends.onednn_kernels import description, handles, operations, plan
from collage.backends.onednn_kernels.rounding import Rounding
from collage.core.typed import MalformedError, shown, typed
from collage.errors import CollageError
from collage.kernel import frames
from collage.kernel.frames import frame, unframe

_KIND = "onednn"
_MOST_FLOATS = 1 << 44
_MODULES = description, operations, plan, handles
_TENSORS = Strided, description.Blocked, description.Packed
_CLASSES: dict[str, Any] = {
    each.__name__: each
    for module in _MODULES
    for each in vars(module).values()
    if isinstance(each, type) and dataclasses.is_dataclass(each)
} | {Rounding.__name__: Rounding}
_NAMES = {
    **_CLASSES,
    # Annotations name these aliases. They are text here, and made types of only where they are read.
    **{
        name: reduce(or_, (_CLASSES[each] for each in alias.split(" | ")))
        for module in _MODULES
        for name, alias in vars(module).items()
        if isinstance(alias, str) and {*alias.split(" | ")} <= _CLASSES.keys()
    },
}


@dataclass(frozen=True)
class OneDnnArtifact:
    """``forms`` says for each constant how it was packed, or None if the plan itself says it.

    ``version`` and ``isa`` are those of the oneDNN that packed them. ``rounding`` tells what is done to
    the data before.
    """

    plan: plan.Plan
    threads: int
    version: str
    isa: int
    forms: tuple[handles.Form | None, ...]
    weights: tuple[npt.NDArray[np.uint8], ...]
    rounding: Rounding | None = None


def to_bytes(artifact: OneDnnArtifact) -> bytes:
    """The artifact as bytes, with its weights at multiples of 64 bytes."""
    head: dict[str, Any] = {
        "plan": _encode(artifact.plan),
        "threads": artifact.threads,
        "version": artifact.version,
        "isa": artifact.isa,
        "forms": _encode(artifact.forms),
    }
    if artifact.rounding is not None:
        head["rounding"] = _encode(artifact.rounding)
    return frame(_KIND, head, [each.data for each in artifact.weights])


def from_artifact(artifact: frames.Artifact) -> OneDnnArtifact:
    """The inverse of ``to_bytes``. Weights lie at multiples of 64 bytes: as copies, or mapped and read-only.

    Raises CollageError for what is none.
    """
    try:
        framed = unframe(_KIND, artifact)
        header = framed.header
        found = OneDnnArtifact(
            typed(plan.Plan, _decode(header["plan"]), _NAMES),
            typed(int, header["threads"]),
            typed(str, header["version"]),
            typed(int, header["isa"]),
            typed(tuple[handles.Form | None, ...], _decode(header["forms"]), _NAMES),
            tuple(framed.array(i) for i in range(len(framed.arrays))),
            typed(Rounding, _decode(header["rounding"]), _NAMES) if "rounding" in header else None,
        )
        _check_plan(found.plan, [each.nbytes for each in found.weights])
        if len(found.forms) != len(found.weights):
            raise MalformedError(f"{len(found.forms)} forms of {len(found.weights)} constants")
        return found
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CollageError(f"this is no oneDNN kernel: {error}") from error


def _encode(value: Any) -> Any:
    """Dataclasses as lists that begin with their name; tuples as lists that begin with 0.

    The last field of a tensor of float32 is left out, so that artifacts with nothing else are what they always were.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, each.name) for each in dataclasses.fields(value)]
        if isinstance(value, _TENSORS) and not value.dtype:
            fields.pop()
        return [type(value).__name__, *(_encode(each) for each in fields)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [0, *(_encode(each) for each in value)]
    return value


def _decode(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    head, *rest = value or [None]
    if head != 0 and head not in _CLASSES:
        raise MalformedError(f"there is no {shown(head)} in a plan")
    decoded = [_decode(each) for each in rest]
    return tuple(decoded) if head == 0 else _CLASSES[head](*decoded)


def _check_plan(found: plan.Plan, sizes: Sequence[int]) -> None:
    """Raises MalformedError for tensors that there cannot be, and for results that would be written to constants.

    ``sizes`` are those of the constants, in bytes.
    """
    for share in (share for step in found.steps for share in step):
        _check_operation(share.operation)
        _check_arguments(share, len(sizes))


def _check_arguments(share: plan.Share, constants: int) -> None:
    for each in share.arguments:
        buffer = each.buffer
        if isinstance(buffer, plan.Weight):
            if not 0 <= buffer.index < constants:
                raise MalformedError(f"constant {buffer.index} of {constants}")
        elif buffer.index < 0 or buffer.offset < 0:
            raise MalformedError(f"a buffer {buffer.index} from {buffer.offset} on")
        if each.number == plan.DST and not isinstance(buffer, plan.Output):
            raise MalformedError("a result is written to what is read")


def _check_operation(operation: operations.Operation) -> None:
    rank = len(operation.src.dims)
    tensors: list[description.Description | None] = [
        getattr(operation, name, None) for name in ("src", "dst", "weights", "bias", "second")
    ]
    tensors += [each.operand for each in operation.post_ops if isinstance(each, operations.Binary)]
    for tensor in tensors:
        if tensor is not None:
            _check_tensor(tensor)
    if isinstance(operation, (operations.Convolution, operations.Pooling)):
        windows = [operation.strides, operation.dilation]
        windows += [operation.kernel] if isinstance(operation, operations.Pooling) else []
        pads = [operation.pad_begin, operation.pad_end]
        if any(len(each) != rank - 2 for each in (*windows, *pads)) or any(min(each) < 1 for each in windows):
            raise MalformedError(f"windows of {windows} on {rank} axes")
        if any(abs(each) > _MOST_FLOATS for numbers in (*windows, *pads) for each in numbers):
            raise MalformedError("windows larger than any tensor")
    if isinstance(operation, operations.Softmax) and not 0 <= operation.axis < rank:
        raise MalformedError(f"axis {operation.axis} of {rank}")


def _check_tensor(tensor: description.Description) -> None:
    if tensor.dtype not in description.ITEM_BYTES:
        raise MalformedError(f"a tensor of {shown(tensor.dtype)}")
    size = 1
    for extent in tensor.dims:
        size *= extent
    if not 1 <= len(tensor.dims) <= handles.MAX_DIMS or min(tensor.dims) < 1 or size > _MOST_FLOATS:
        raise MalformedError(f"a tensor of {tensor.dims}")
    if isinstance(tensor, description.Blocked) and not 3 <= len(tensor.dims) <= 5:
        raise MalformedError(f"a tensor of {tensor.dims} in blocks")
    if isinstance(tensor, Strided):
        last = sum((extent - 1) * step for extent, step in zip(tensor.dims, tensor.strides, strict=False))
        if len(tensor.strides) != len(tensor.dims) or min(tensor.strides) < 0 or last > _MOST_FLOATS:
            raise MalformedError(f"a tensor of {tensor.dims} in steps of {tensor.strides}")
