"""Loading artifacts: primitives bound to buffers as steps, perhaps on data that is rounded to 8 bits before."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collage.backends.chains.strided import cut
from collage.backends.onednn_kernels.artifact import OneDnnArtifact, from_artifact
from collage.backends.onednn_kernels.handles import Handle, memory, stream
from collage.backends.onednn_kernels.library import library, teach_core
from collage.backends.onednn_kernels.plan import SCRATCHPAD, Input, PostOpOperand, Share, Weight
from collage.backends.onednn_kernels.primitive import DnnlArgument, PrimitiveDesc, argument_number
from collage.backends.onednn_kernels.rounding import Rounding, check_rounding
from collage.core.typed import MalformedError
from collage.errors import ModuleFileError
from collage.graph.dataflow import Array
from collage.kernel import frames
from collage.kernel.buffers import ALIGNMENT, aligned_bytes
from collage.native import NativeKernel, Step, Task, in_sequence
from collage.native.kernel_library import kernel_function, rounding_problem
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

    def task_of(self, share: Share, place: int, shares: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> Task:
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
        raise MalformedError(f"a buffer of {array.nbytes} bytes, of which {needed} from {offset} on are needed")


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


class RoundedKernel(NativeKernel):
    """Threads share the rows of a single item: its ranges are known to all before any of them rounds.

    Of several items each thread computes some by itself, so that there is nothing to wait for.
    """

    def __init__(self, artifact: OneDnnArtifact, rounding: Rounding, threads: int | None = None) -> None:
        """Raises MalformedError for what does not fit, and ModuleFileError where this CPU cannot run it."""
        super().__init__(artifact.threads)
        if problem := rounding_problem():
            raise ModuleFileError(f"{problem}: compile the model here.")
        check_rounding(rounding, artifact.plan, artifact.threads, [each.nbytes for each in artifact.weights])
        self._rounding = rounding
        self._inner = OneDnnKernel(replace(artifact, rounding=None), threads)
        self._constants = [artifact.weights[each] for each in rounding.constants]
        self._find, self._round = map(kernel_function, ("collage_find_ranges", "collage_round"))
        self._share = artifact.plan.steps[0][0]
        self._by_rows = len(artifact.plan.steps[0]) > 1
        self._shape = rounding.shape(rounding.shares if self._by_rows else 1)

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """Two steps of rounding and one of convolving, or one where threads have items of their own."""
        rounding = self._rounding
        _check_items("input", inputs, (rounding.data, *rounding.sliced), rounding.items)
        _check_items("output", outputs, (0,), rounding.items)
        if picked("input", inputs, rounding.data).nbytes < rounding.items * rounding.data_bytes:
            raise MalformedError("the data is smaller than what the kernel rounds")
        if self._by_rows:
            rounded = self._rounded(self._scratch(0), inputs)
            shares = range(rounding.shares)
            first = (Step(tuple(rounded.task(each, i) for i in shares)) for each in (self._find, self._round))
            return [*first, *self._inner.steps([*inputs, *rounded.arrays], outputs)]
        parts = cut(rounding.items, rounding.shares)
        return [Step(tuple(in_sequence([*self._items(i, *part, inputs, outputs)]) for i, part in enumerate(parts)))]

    def _items(
        self, place: int, first: int, end: int, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Iterator[Task]:
        """What thread ``place`` does with its items."""
        rounding = self._rounding
        sliced, scratch = {rounding.data, *rounding.sliced}, self._scratch(place)
        for item in range(first, end):
            own = [each[item : item + 1] if i in sliced else each for i, each in enumerate(inputs)]
            rounded = self._rounded(scratch, own)
            yield rounded.task(self._find, 0)
            yield rounded.task(self._round, 0)
            result = [each[item : item + 1] for each in outputs]
            yield self._inner.task_of(self._share, place, rounding.shares, [*own, *rounded.arrays], result)

    def _scratch(self, place: int) -> npt.NDArray[np.uint8]:
        """Memory of all threads, or of thread ``place``; the kernel's own where it may run beside others."""
        nbytes = sum(self._rounding.parts)
        if self._rounding.shares == self.threads:
            return shared_scratch(self.threads, self.threads + place, nbytes)
        return aligned_bytes(nbytes)

    def _rounded(self, scratch: npt.NDArray[np.uint8], inputs: Sequence[Array]) -> _Rounded:
        """What the data of an item becomes, in scratch memory."""
        sizes = self._rounding.parts
        ends = np.cumsum(sizes)
        data, factors, terms, tables = (scratch[end - size : end] for end, size in zip(ends, sizes, strict=True))
        arrays = [inputs[self._rounding.data], *self._constants, data, factors, terms, tables]
        buffers = (ctypes.c_void_p * len(arrays))(*(each.ctypes.data for each in arrays))
        return _Rounded(self._shape, buffers, (data, factors, terms), (*arrays, scratch))


@dataclass(frozen=True)
class _Rounded:
    """An item's ``collage_rounding_shape`` and ``collage_rounding_buffers``.

    ``arrays`` are what the convolution reads of them: the rounded data, the factors and the terms.
    """

    shape: ctypes.Structure
    buffers: ctypes.Array[ctypes.c_void_p]
    arrays: tuple[npt.NDArray[np.uint8], ...]
    keep: tuple[object, ...]

    def task(self, function: int, share: int) -> Task:
        """A share of one of the two functions."""
        shape, buffers = ctypes.addressof(self.shape), ctypes.addressof(self.buffers)
        return Task(function, shape, buffers, share, keep=(self.shape, self.buffers, self.keep))


def load(artifact: frames.Artifact, threads: int | None = None) -> NativeKernel:
    """The kernel of an artifact, with weights of its own where these are not mapped, on so many threads.

    Raises ModuleFileError when this machine's oneDNN would pack the weights otherwise.
    """
    found = from_artifact(artifact)
    if found.rounding is not None:
        return RoundedKernel(found, found.rounding, threads)
    return OneDnnKernel(found, threads)


def _check_items(what: str, arrays: Sequence[Array], which: Sequence[int], items: int) -> None:
    for index in which:
        array = picked(what, arrays, index)
        if items > 1 and (not array.ndim or array.shape[0] != items):
            raise MalformedError(f"{what} {index} has no part for each of {items} items")
