"""Layout transforms as kernels."""

from __future__ import annotations

import numpy as np

from collage.backends.chains.strided import Strided, cut
from collage.backends.onednn_kernels.artifact import to_bytes
from collage.backends.onednn_kernels.builder import Draft
from collage.backends.onednn_kernels.description import Blocked, laid_out, outermost, view
from collage.backends.onednn_kernels.kernel import load
from collage.backends.onednn_kernels.narrow import DTYPES, narrow, stored_dtype, typed
from collage.backends.onednn_kernels.operations import Reorder, Rescale
from collage.backends.onednn_kernels.pack import pack
from collage.backends.onednn_kernels.plan import (
    DST,
    SOURCE_SCALE,
    SRC,
    Argument,
    Input,
    Output,
    Plan,
    Share,
    Weight,
)
from collage.graph.dataflow import TensorType
from collage.graph.storage import BLOCK, BLOCKED, PLAIN, Storage, steps_of, stored_type, widened
from collage.kernel.options import Variant
from collage.native import NativeKernel


def reorder_kernel(kind: TensorType, source: Storage, target: Storage, threads: int) -> NativeKernel:
    """A kernel of one input and one output that stores a value in another layout, on ``threads`` threads.

    The value is float32, where either side may be a narrow storage, or has integers of 8 bits.
    Padding channels of a blocked result are zeros. Raises ValueError when the value has no such layout, and
    CollageError without oneDNN.
    """
    if kind.dtype not in DTYPES:
        raise ValueError(f"{kind}: only values of float32 and of 8 bits change their layout")
    for layout in (source, target):
        stored_type(kind, layout)
    return load(reorder_artifact(kind, source, target, threads))


def reorder_artifact(kind: TensorType, source: Storage, target: Storage, threads: int) -> bytes:
    """The kernel's artifact."""
    scale = _scale(source, target)
    shares = []
    for src, begin, dst, at in _parts(kind.shape, widened(source), widened(target), threads):
        arguments = Argument(SRC, Input(0, begin)), Argument(DST, Output(0, at))
        if scale is None:
            shares.append(Share(Reorder(src, dst), arguments))
        else:
            shares.append(Share(Rescale(src, dst), (*arguments, Argument(SOURCE_SCALE, Weight(0)))))
    draft = Draft(Plan((tuple(shares),)), () if scale is None else (np.full(1, scale, np.float32),))
    if scale is not None:
        draft = typed(draft, {SRC: stored_dtype(source), DST: stored_dtype(target)})
    elif dtype := DTYPES[kind.dtype]:
        draft = typed(draft, {SRC: dtype, DST: dtype})
    else:
        draft = narrow(draft, Variant((source,), (target,)))
    return to_bytes(pack(draft.plan, draft.arrays, threads))


def _scale(source: Storage, target: Storage) -> float | None:
    """What numbers are multiplied by on their way to or from steps of 8 bits; None if there are no such steps."""
    before, after = steps_of(source), steps_of(target)
    if before is None and after is None:
        return None
    return (1.0 if before is None else before.scale) * (1.0 if after is None else 1 / after.scale)


def _parts(
    shape: tuple[int, ...], source: Storage, target: Storage, threads: int
) -> list[tuple[Strided | Blocked, int, Strided | Blocked, int]]:
    """Parts that lie together in a blocked side, and are strided views where another side needs them."""
    if not shape:
        return [(laid_out((1,), PLAIN), 0, laid_out((1,), PLAIN), 0)]
    guide = next((each for each in (source, target) if each == BLOCKED), target)
    axis = outermost(shape, guide)
    unit = BLOCK if guide == BLOCKED and axis == 1 else 1
    return [
        (*view(shape, source, axis, a, b), *view(shape, target, axis, a, b)) for a, b in cut(shape[axis], threads, unit)
    ]
