"""Packing weights as the primitives of a plan want them, which is done once, at compile time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collage.backends.chains.strided import dense
from collage.backends.onednn_kernels.artifact import OneDnnArtifact
from collage.backends.onednn_kernels.canonical import settled
from collage.backends.onednn_kernels.description import Description, Packed
from collage.backends.onednn_kernels.handles import Form, form_of, memory_desc
from collage.backends.onednn_kernels.library import library
from collage.backends.onednn_kernels.plan import WEIGHTS, Plan, Share, Weight
from collage.backends.onednn_kernels.primitive import PrimitiveDesc, reorder
from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_bytes


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
