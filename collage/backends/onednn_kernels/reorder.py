"""Layout transforms as kernels."""

from __future__ import annotations

from collage.backends.chains.strided import Strided, cut
from collage.backends.onednn_kernels.artifact import to_bytes
from collage.backends.onednn_kernels.builder import Draft
from collage.backends.onednn_kernels.description import Blocked, laid_out, outermost, view
from collage.backends.onednn_kernels.kernel import load
from collage.backends.onednn_kernels.narrow import narrow
from collage.backends.onednn_kernels.operations import Reorder
from collage.backends.onednn_kernels.pack import pack
from collage.backends.onednn_kernels.plan import DST, SRC, Argument, Input, Output, Plan, Share
from collage.graph.dataflow import TensorType
from collage.graph.storage import BLOCK, BLOCKED, PLAIN, Storage, stored_type, widened
from collage.kernel.options import Variant
from collage.native import NativeKernel


def reorder_kernel(kind: TensorType, source: Storage, target: Storage, threads: int) -> NativeKernel:
    """A kernel of one input and one output that stores a float32 value in another layout, on ``threads`` threads.

    Either side may be a narrow storage.
    Padding channels of a blocked result are zeros. Raises ValueError when the value has no such layout, and
    CollageError without oneDNN.
    """
    if kind.dtype != "float32":
        raise ValueError(f"{kind}: only float32 values change their layout")
    for layout in (source, target):
        stored_type(kind, layout)
    return load(reorder_artifact(kind, source, target, threads))


def reorder_artifact(kind: TensorType, source: Storage, target: Storage, threads: int) -> bytes:
    """The kernel's artifact."""
    shares = []
    for src, begin, dst, at in _parts(kind.shape, widened(source), widened(target), threads):
        arguments = Argument(SRC, Input(0, begin)), Argument(DST, Output(0, at))
        shares.append(Share(Reorder(src, dst), arguments))
    draft = narrow(Draft(Plan((tuple(shares),)), ()), Variant((source,), (target,)))
    return to_bytes(pack(draft.plan, draft.arrays, threads))


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
        (*view(shape, source, axis, a, b), *view(shape, target, axis, a, b))
        for a, b in cut(shape[axis], threads, unit)
    ]
