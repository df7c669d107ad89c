"""Binding the primitives of artifacts, weights and scratch memory to buffers as steps of a launch list."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from collage.backends.onednn_kernels.artifact import OneDnnArtifact
from collage.backends.onednn_kernels.handles import Handle, memory, stream
from collage.backends.onednn_kernels.library import library, teach_core
from collage.backends.onednn_kernels.plan import SCRATCHPAD, Input, PostOpOperand, Share, Weight
from collage.backends.onednn_kernels.primitive import DnnlArgument, PrimitiveDesc, argument_number
from collage.core.typed import MalformedError
from collage.errors import ModuleFileError
from collage.graph.dataflow import Array
from collage.kernel.buffers import ALIGNMENT, aligned_bytes
from collage.native import NativeKernel, Step, Task
from collage.native.library import address_of
from collage.native.reach import picked
from collage.native.scratch import shared_scratch


class OneDnnKernel(NativeKernel):
    """Primitives for each share of each step."""

    def __init__(self, artifact: OneDnnArtifact, threads: int | None = None) -> None:
        """Raises MalformedError for an artifact that is for another number of threads."""
        super().__init__(artifact.threads)
        if threads is not None and threads != artifact.threads:
            raise MalformedError(f"a kernel of {artifact.threads} threads for {threads}")
        teach_core()
        self._plan = artifact.plan
        self._weights = artifact.weights
        self._made: dict[Share, tuple[PrimitiveDesc, Handle]] = {}
        for step in artifact.plan.steps:
            for share in step:
                if share not in self._made:
                    desc = PrimitiveDesc(share.operation)
                    _check_forms(artifact, share, desc)
                    self._made[share] = desc, desc.make()

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """Steps with one task for each share. Tasks stay with their threads, whose scratch memory they use."""
        return [
            Step(tuple(self.task_of(share, i, len(step), inputs, outputs) for i, share in enumerate(step)))
            for step in self._plan.steps
        ]

    def task_of(
        self, share: Share, place: int, shares: int, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Task:
        """The share's primitive on these buffers, for thread ``place`` of those that have a share of their own."""
        desc, primitive = self._made[share]
        numbers, memories = [], []
        for each in share.arguments:
            buffer, offset = each.buffer, 0
            if isinstance(buffer, Weight):
                array: Array = self._weights[buffer.index]
            elif isinstance(buffer, Input):
                array, offset = picked("input", inputs, buffer.index), buffer.offset
            else:
                array, offset = picked("output", outputs, buffer.index), buffer.offset
            _check_size(desc, each.number, array, offset)
            address = array.ctypes.data + offset
            numbers.append(argument_number(each.number))
            memories.append(memory(desc.memory_desc(each.number), address))
        scratch = self._scratch(desc.scratchpad_bytes, place, shares)
        numbers.append(SCRATCHPAD)
        memories.append(memory(desc.memory_desc(SCRATCHPAD), scratch.ctypes.data))
        arguments = (DnnlArgument * len(numbers))(
            *(DnnlArgument(number, each.value) for number, each in zip(numbers, memories, strict=True))
        )
        return Task(
            address_of(library().c.dnnl_primitive_execute),
            a=primitive.value,
            b=stream(),
            n=len(numbers),
            c=ctypes.addressof(arguments),
            keep=(self, arguments, tuple(memories), scratch, tuple(inputs), tuple(outputs)),
        )

    def _scratch(self, nbytes: int, place: int, shares: int) -> npt.NDArray[np.uint8]:
        if shares > 1 or self.threads == 1:
            return shared_scratch(self.threads, place % self.threads, nbytes)
        return aligned_bytes(max(nbytes, ALIGNMENT))


def _check_size(desc: PrimitiveDesc, number: int | PostOpOperand, array: Array, offset: int) -> None:
    """Raises ValueError if the primitive would go beyond the array."""
    needed = desc.nbytes(number)
    if not needed:
        raise MalformedError(f"the primitive has no argument {number}")
    if array.nbytes < offset + needed or not array.flags.c_contiguous:
        raise MalformedError(
            f"a buffer of {array.nbytes} bytes, of which {needed} from {offset} on are needed"
        )


def _check_forms(artifact: OneDnnArtifact, share: Share, desc: PrimitiveDesc) -> None:
    for each in share.arguments:
        if not isinstance(each.buffer, Weight):
            continue
        form = artifact.forms[each.buffer.index]
        if form is not None and desc.form(each.number) != form:
            here = library()
            raise ModuleFileError(
                f"its weights were packed by oneDNN {artifact.version} for another processor (ISA "
                f"{artifact.isa:#x}); oneDNN {here.text} on this one (ISA {here.isa:#x}) packs them otherwise: "
                "compile the model here."
            )
