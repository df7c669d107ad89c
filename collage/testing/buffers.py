"""A kernel on guarded buffers: what a call does to memory."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from collage.check.gate import same_bytes
from collage.check.stages import RejectedError, stage
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array, TensorType, np_dtype
from collage.graph.storage import CUDA, PLAIN, Storage, from_layout, stored_type, to_layout
from collage.kernel.buffers import ALIGNMENT, as_bytes
from collage.kernel.device_array import empty_on, on_device, poison, put, to_host
from collage.kernel.kernel import Kernel
from collage.kernel.options import Variant

_MARGIN = mmap.PAGESIZE + ALIGNMENT
"""Bytes on each side of a buffer that nobody may write to. The buffer begins at no page."""
_GUARD = 0xFF
"""The byte there: floats made of it are NaN, of a kind that arithmetic does not make."""
_OTHERS = (0x5A, 0x25)
"""Bytes that outputs are filled with, to see which of them a call leaves."""


class DefectError(Exception):
    """A kernel breaks its contract: ``kind`` is the check that shows it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@contextmanager
def as_defect() -> Iterator[None]:
    """Turn RejectedError into DefectError."""
    try:
        yield
    except RejectedError as rejected:
        raise DefectError("raises", str(rejected)) from rejected


class Guarded:
    """An aligned array between two margins. On a GPU there are none."""

    def __init__(self, kind: TensorType, storage: Storage) -> None:
        stored = stored_type(kind, storage)
        self._memory: Array | None = None
        self.array: Array
        if storage.device == CUDA:
            self.array = empty_on(CUDA, stored.shape, stored.dtype)
            return
        pages = mmap.mmap(-1, stored.nbytes + 2 * _MARGIN, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory = np.frombuffer(pages, np.uint8)
        self._memory.fill(_GUARD)
        inside = self._memory[_MARGIN : _MARGIN + stored.nbytes]
        self.array = inside.view(np_dtype(stored.dtype)).reshape(stored.shape)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Whatever writes to the array, or to what is around it, ends the process."""
        if self._memory is None:
            yield
            return
        _protect(self._memory, mmap.PROT_READ)
        try:
            yield
        finally:
            _protect(self._memory, mmap.PROT_READ | mmap.PROT_WRITE)

    def written(self) -> str:
        """Where around the array something was written; "" if nothing was."""
        if self._memory is None:
            return ""
        before, after = self._memory[:_MARGIN], self._memory[_MARGIN + self.array.nbytes :]
        for side, where in ((before, "before"), (after, "after")):
            if count := int(np.count_nonzero(side != _GUARD)):
                return f"{count} bytes {where}"
        return ""


def _protect(memory: Array, access: int) -> None:
    """Choose who may read and write the pages of ``memory``, which begins at one."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if protect(memory.ctypes.data, memory.nbytes, access):
        raise OSError(ctypes.get_errno(), "mprotect")


class Bound:
    """A kernel that is bound to guarded buffers, in the storages of a variant.

    With ``in_place``, the output is the input at that position.
    """

    def __init__(self, kernel: Kernel, subgraph: Subgraph, variant: Variant, in_place: int | None = None) -> None:
        """Raises DefectError if ``bind`` raises."""
        self.takes = variant.inputs or (PLAIN,) * len(subgraph.inputs)
        self.gives = variant.outputs or (PLAIN,) * len(subgraph.outputs)
        self.in_place = in_place
        self._kinds = subgraph.output_types
        self._inputs = [Guarded(*each) for each in zip(subgraph.input_types, self.takes, strict=True)]
        self._outputs = [Guarded(*each) for each in zip(subgraph.output_types, self.gives, strict=True)]
        if in_place is not None:
            self._outputs = [self._inputs[in_place]]
        with as_defect(), stage("bind"):
            self._call = kernel.bind([each.array for each in self._inputs], self.outputs)

    @property
    def outputs(self) -> list[Array]:
        """The buffers of the outputs."""
        return [each.array for each in self._outputs]

    def stored(self, inputs: Sequence[Array]) -> list[Array]:
        """Plain inputs as the kernel takes them."""
        return [to_layout(array, storage) for array, storage in zip(inputs, self.takes, strict=True)]

    def fill(self, stored: Sequence[Array]) -> None:
        """Put inputs, in their storages, into the buffers."""
        for guarded, values in zip(self._inputs, stored, strict=True):
            put(guarded.array, values)

    def call(self) -> None:
        """Run the kernel once. Raises DefectError."""
        with as_defect(), stage("run"):
            self._call()

    def run(self, stored: Sequence[Array], about: str = "") -> None:
        """Fill the buffers, poison the outputs, run once, and look at the memory.

        Raises DefectError, whose text begins with ``about``.
        """
        self.fill(stored)
        if self.in_place is None:
            for each in self.outputs:
                poison(each)
        self.call()
        self.check_memory(stored, about)

    def run_read_only(self, stored: Sequence[Array]) -> None:
        """Run once on inputs that cannot be written: a kernel that does ends the process, also if it restores them."""
        self.fill(stored)
        with ExitStack() as stack:
            for each in self._inputs:
                stack.enter_context(each.read_only())
            self.call()

    def check_memory(self, stored: Sequence[Array], about: str = "") -> None:
        """Compare what no call may change with what it was. Raises DefectError."""
        for name, side in (("input", self._inputs), ("output", self._outputs)):
            for position, each in enumerate(side):
                if where := each.written():
                    raise DefectError("outside", f"{about}writes {where} its {name} {position}")
        for position, (each, values) in enumerate(zip(self._inputs, stored, strict=True)):
            if position != self.in_place and not same_bytes(to_host(each.array), values):
                raise DefectError("inputs", f"{about}writes to its input {position}")

    def results(self) -> list[Array]:
        """Copies of the outputs."""
        return [to_host(each).copy() for each in self.outputs]

    def plain_results(self) -> list[Array]:
        """The outputs in the logical order. Raises DefectError if what pads one is not as its format has it."""
        found = []
        for position, (kind, storage, array) in enumerate(zip(self._kinds, self.gives, self.results(), strict=True)):
            found.append(from_layout(array, storage, kind))
            if not np.array_equal(to_layout(found[-1], storage), array, equal_nan=array.dtype.kind in "fcV"):
                raise DefectError("formats", f"output {position} is padded with other numbers than zero")
        return found

    def unwritten(self, stored: Sequence[Array], position: int) -> int:
        """The number of elements of an output that a call leaves as they are, whatever they are."""
        output = self.outputs[position]
        if self.in_place is not None or on_device(output) or not output.size:
            return 0
        kept = np.ones(output.size, bool)
        for byte in _OTHERS:
            self.fill(stored)
            for each in self.outputs:
                as_bytes(each).fill(byte)
            self.call()
            kept &= (as_bytes(output).reshape(output.size, -1) == byte).all(axis=1)
        return int(kept.sum())


def results_of(
    kernel: Kernel, subgraph: Subgraph, variant: Variant, inputs: Sequence[Array], in_place: Sequence[int] = ()
) -> list[Array]:
    """Plain outputs of a kernel on plain inputs, the same in two runs and in place. Raises DefectError."""
    bound = Bound(kernel, subgraph, variant)
    stored = bound.stored(inputs)
    bound.run(stored)
    first = bound.results()
    bound.run(stored, "in a second call, ")
    if not all(map(same_bytes, bound.results(), first)):
        raise DefectError("state", "a second call gives other numbers")
    for position in in_place:
        other = Bound(kernel, subgraph, variant, position)
        other.run(stored)
        if not same_bytes(other.results()[0], first[0]):
            raise DefectError("inputs", f"other numbers with its output in input {position}")
    return bound.plain_results()
