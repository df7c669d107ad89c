"""Values that share memory: other names and parts of a value, and results that overwrite inputs not read again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from collage.backends.base import VIEW
from collage.graph.dataflow import TensorType
from collage.graph.storage import HOST
from collage.graph.views import PART_BYTES
from collage.schedule.region import Region


@dataclass(frozen=True)
class BufferView:
    """Where a value is stored: ``offset`` bytes into the buffer of the value ``base``."""

    base: int
    offset: int


@dataclass
class Sharing:
    """The values that have no buffer of their own, but are in the buffers of others; it is built region by region.

    ``inputs`` are the model's. They may be in their caller's memory, so they are never parts of other values.
    ``devices`` has the devices of the values that are not on the host. Only values on one device share memory.
    """

    types: Mapping[int, TensorType]
    inputs: frozenset[int]
    devices: Mapping[int, str] = field(default_factory=dict)
    _parents: dict[int, BufferView] = field(default_factory=dict)
    _made_of: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def buffer_view(self, value: int) -> BufferView:
        """Where the value is stored; at the start of its own buffer where it has one."""
        offset = 0
        while value in self._parents:
            parent = self._parents[value]
            value, offset = parent.base, offset + parent.offset
        return BufferView(value, offset)

    def base(self, value: int) -> int:
        """The value whose buffer holds this one."""
        return self.buffer_view(value).base

    def device(self, value: int) -> str:
        """The device that the value is on."""
        return self.devices.get(value, HOST)

    def made_of(self, value: int) -> tuple[int, ...]:
        """The values that this one consists of, each written by a launch or the caller."""
        return self._made_of.get(value, (value,))

    def buffer_views(self) -> dict[int, BufferView]:
        """The buffer views of all values without a buffer of their own."""
        return {value: self.buffer_view(value) for value in self._parents}

    def view(self, region: Region) -> bool:
        """Let the inputs and outputs of a view share a buffer.

        Returns False, and changes nothing, where the region is no view or they cannot share one.
        """
        if region.backend != VIEW:
            return False
        if len(region.inputs) == 1:
            (whole,) = region.inputs
            self._put(region.outputs, whole)
            self._made_of.update(dict.fromkeys(region.outputs, self.made_of(whole)))
            return True
        (whole,) = region.outputs
        bases = [self.base(v) for v in region.inputs]
        sizes = [self.types[v].nbytes for v in region.inputs]
        if len(set(bases)) < len(bases) or self.inputs & set(bases):
            return False
        if any(size % PART_BYTES for size in sizes[:-1]):
            return False
        if any(self.types[b].nbytes != size for b, size in zip(bases, sizes, strict=True)):
            return False  # it is a part of something itself
        self._put(bases, whole)
        self._made_of[whole] = tuple(dict.fromkeys(each for v in region.inputs for each in self.made_of(v)))
        return True

    def overwrite(self, result: int, taken: int) -> None:
        """Let ``result``, which has a buffer of its own and the same size, take the buffer that ``taken`` fills."""
        self._parents[result] = BufferView(self.base(taken), 0)

    def _put(self, parts: Sequence[int], whole: int) -> None:
        offset = 0
        for part in parts:
            self._parents[part] = BufferView(whole, offset)
            offset += self.types[part].nbytes


def overwrite_in_place(
    sharing: Sharing, launches: Sequence[Region], before: Sequence[int], kept: Collection[int]
) -> None:
    """Let results overwrite inputs that no launch reads afterwards, where the kernel allows it.

    ``before[v]`` is the set of launches that have ended when launch v begins (bit u stands for launch u). ``kept`` are
    the values that must last to the end.
    """
    uses: dict[int, int] = {}
    for value in kept:
        uses[sharing.base(value)] = 1 << len(launches)
    for number, region in enumerate(launches):
        for value in (*region.inputs, *region.outputs):
            base = sharing.base(value)
            uses[base] = uses.get(base, 0) | 1 << number
    for number, region in enumerate(launches):
        if len(region.outputs) != 1:
            continue
        (result,) = region.outputs
        read = [sharing.base(v) for v in region.inputs]
        for position in region.in_place:
            base = read[position]
            once = read.count(base) == 1 and sharing.base(result) == result != base
            fits = once and _fits(sharing, region.inputs[position], result)
            if fits and not uses[base] & ~(before[number] | 1 << number):
                uses[base] |= uses[result]
                sharing.overwrite(result, base)
                break


def _fits(sharing: Sharing, taken: int, result: int) -> bool:
    """Whether the value fills its buffer, which is as large as the result and on the same device."""
    types = sharing.types
    if sharing.device(taken) != sharing.device(result):
        return False
    return types[sharing.base(taken)].nbytes == types[taken].nbytes == types[result].nbytes
