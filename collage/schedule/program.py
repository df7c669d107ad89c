"""A program: the launch list and the memory plan, which are all that a run needs besides kernels and constants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from collage.graph.dataflow import TensorType, np_dtype
from collage.graph.storage import CUDA, HOST
from collage.schedule.dag import Dag
from collage.schedule.memory import ALIGNMENT, DEVICE_ALIGNMENT, Lifetime, MemoryPlan, lifetimes, plan_memory
from collage.schedule.region import Region
from collage.schedule.schedule import TEAM, Ordered, Schedule
from collage.schedule.sharing import BufferView, Sharing, overwrite_in_place
from collage.schedule.suffix import Suffix, ValuePort

Step: TypeAlias = "tuple[Sequence[int], Sequence[int]]"
"""The values that a launch reads, and those that it writes."""

_ALL_ON_HOST: Mapping[int, str] = {}
_NO_LIMITS: Mapping[int, float] = {}
_NOTHING: Mapping[int, bytes] = {}


@dataclass(frozen=True)
class Port:
    """An input or output of the model: its name, the id of its value, and its type.

    An input that is used as indices has the number of ``rows`` that it indexes, or one number for each column of its
    last axis.
    """

    name: str
    value: int
    type: TensorType
    rows: int | tuple[int, ...] | None = None


@dataclass(frozen=True)
class Program:
    """Regions in launch order, the types of the values between them, and where these are in their arenas.

    ``aliases`` has the values that are stored in the buffer of another one: results of views, the parts that a view
    joins, and results that overwrite an input.
    """

    regions: tuple[Region, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    types: Mapping[int, TensorType]
    aliases: Mapping[int, BufferView]
    arenas: Mapping[str, MemoryPlan]
    """The memory plan of each device. The host is always among them."""
    launches: tuple[Region, ...]
    """The regions that run a kernel: all but views that share their input's buffer."""
    ordered: Ordered
    """The streams that the launches run on, and which launch waits for which; launches are in the schedule's order."""
    threads: int
    """The number of threads of the team."""
    suffix: Suffix | None = None
    """What one engine runs after all launches, and the whole model's inputs and outputs; the last of the regions."""
    devices: Mapping[int, str] = field(default_factory=dict)
    """The devices of the values that are not on the host."""
    limits: Mapping[int, float] = field(default_factory=dict)
    """The largest magnitudes that scans accept of some values; of others it is ``magnitudes.LIMIT``."""
    assumed: Mapping[int, bytes] = field(default_factory=dict)
    """The contents of inputs without which the program is wrong; the original model answers all other calls."""

    @property
    def memory(self) -> MemoryPlan:
        """The memory plan of the host."""
        return self.arenas[HOST]

    def device(self, value: int) -> str:
        """The device that the value is on."""
        return self.devices.get(value, HOST)

    @property
    def on_gpu(self) -> tuple[bool, ...]:
        """For each launch, whether all that it reads and writes is on the GPU."""
        return tuple(runs_on_gpu(each, self.devices) for each in self.launches)

    @property
    def model_inputs(self) -> Sequence[Port | ValuePort]:
        """The inputs of the whole model, of any type; ``inputs`` are those of the launches."""
        return self.inputs if self.suffix is None else self.suffix.inputs

    @property
    def model_outputs(self) -> Sequence[Port | ValuePort]:
        """The outputs of the whole model, of any type; ``outputs`` are those of the launches."""
        return self.outputs if self.suffix is None else self.suffix.outputs

    @property
    def executed(self) -> tuple[Region, ...]:
        """All that is run, in order: the launches and the suffix."""
        return self.launches if self.suffix is None else (*self.launches, self.suffix.region)

    def followed_by(self, suffix: Suffix) -> Program:
        """The same with a suffix after it."""
        return replace(self, regions=(*self.regions, suffix.region), suffix=suffix)

    def buffer_view(self, value: int) -> BufferView:
        """The buffer that the value is in, and where in it."""
        return self.aliases.get(value, BufferView(value, 0))

    def offset(self, value: int) -> int:
        """The offset of the value in the arena of its device, in bytes."""
        view = self.buffer_view(value)
        return self.arenas[self.device(value)].offsets[view.base] + view.offset

    @property
    def is_guarded(self) -> bool:
        """Whether some values are scanned for NaN, infinities and huge magnitudes, or compared with what is assumed."""
        return bool(self.assumed) or any(region.scans for region in self.launches)

    @property
    def assumptions(self) -> dict[str, Any]:
        """The assumed contents by the input's name, as numbers or nested lists of numbers."""
        found = {}
        for port in self.inputs:
            if port.value in self.assumed:
                array = np.frombuffer(self.assumed[port.value], np_dtype(port.type.dtype))
                found[port.name] = array.reshape(port.type.shape).tolist()
        return found

    @property
    def value_bytes(self) -> int:
        """The bytes of all values that kernels write or callers give, as if each had a buffer of its own."""
        launched = set(self.launches)
        made = [v for r in self.regions if r in launched or len(r.inputs) > 1 for v in r.outputs]
        return sum(self.types[v].nbytes for v in (*(p.value for p in self.inputs), *made))

    def to_json(self) -> dict[str, Any]:
        """Plain values for the module file, with devices, limits and assumptions if there are any.

        Memory plans are made again on loading.
        """
        return {
            "regions": [r.to_json() for r in self.regions if self.suffix is None or r is not self.suffix.region],
            "inputs": [[p.name, p.value, p.rows] for p in self.inputs],
            "outputs": [[p.name, p.value] for p in self.outputs],
            "threads": self.threads,
            "types": {str(v): [list(t.shape), t.dtype] for v, t in self.types.items()},
            **({"devices": {str(v): each for v, each in self.devices.items()}} if self.devices else {}),
            **({"limits": {str(v): each for v, each in self.limits.items()}} if self.limits else {}),
            **({"assumed": {str(v): each.hex() for v, each in self.assumed.items()}} if self.assumed else {}),
            # Files call the suffix "tail", so that those of earlier versions can be read.
            "tail": None if self.suffix is None else self.suffix.to_json(),
        }


def make_program(
    regions: Sequence[Region],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    types: Mapping[int, TensorType],
    threads: int = 1,
    devices: Mapping[int, str] = _ALL_ON_HOST,
    limits: Mapping[int, float] = _NO_LIMITS,
    assumed: Mapping[int, bytes] = _NOTHING,
) -> Program:
    """Make a program of a launch list (regions in a topological order), and plan its memory, device by device.

    A region with fewer threads than ``threads`` runs on its stream; all others take the whole team. ``devices`` has the
    devices of the values that are not on the host. A region all of whose values are on the GPU runs there on the stream
    before its own, and by itself where that is 0. ``limits`` are the largest magnitudes of values that are scanned.
    ``assumed`` has the contents of inputs without which the program is wrong.
    """
    sharing = Sharing(types, frozenset(p.value for p in inputs), devices)
    launches = tuple(r for r in regions if not sharing.view(r))
    ordered = Ordered(_dag(launches, sharing), _schedule(launches, threads, devices))
    overwrite_in_place(sharing, launches, ordered.before, [p.value for p in (*inputs, *outputs)])
    steps: list[Step] = [([sharing.base(v) for v in r.inputs], [sharing.base(v) for v in r.outputs]) for r in launches]
    given, ends = ([sharing.base(p.value) for p in ports] for ports in (inputs, outputs))
    sizes = {value: kind.nbytes for value, kind in types.items()}
    lives = lifetimes(steps, sizes, given, ends)
    scanned = {value for region in regions for value in region.scans}
    meet = _meet(steps, ordered, given, ends) if ordered.schedule.count > 0 else None
    return Program(
        tuple(regions),
        tuple(inputs),
        tuple(outputs),
        dict(types),
        sharing.buffer_views(),
        {each: _plan_of(each, sharing, lives, meet) for each in (HOST, *sorted({*devices.values()} - {HOST}))},
        launches,
        ordered,
        threads,
        devices=dict(devices),
        limits={value: each for value, each in limits.items() if value in scanned},
        assumed=dict(assumed),
    )


def _plan_of(
    device: str,
    sharing: Sharing,
    lives: Mapping[int, Lifetime],
    meet: Callable[[int, int], bool] | None,
) -> MemoryPlan:
    """The memory plan of the values on one device."""
    alignment = ALIGNMENT if device == HOST else DEVICE_ALIGNMENT
    return plan_memory({v: life for v, life in lives.items() if sharing.device(v) == device}, meet, alignment)


def _schedule(launches: Sequence[Region], threads: int, devices: Mapping[int, str]) -> Schedule:
    streams = (_stream(each, threads, devices) for each in launches)
    return Schedule(tuple(range(len(launches))), tuple(streams))


def _stream(region: Region, threads: int, devices: Mapping[int, str]) -> int:
    if runs_on_gpu(region, devices):
        return region.stream - 1 if region.stream else TEAM
    return region.stream if region.threads < threads else TEAM


def runs_on_gpu(region: Region, devices: Mapping[int, str]) -> bool:
    """Whether all that the region reads and writes is on the GPU."""
    values = *region.inputs, *region.outputs
    return bool(region.outputs) and all(devices.get(v) == CUDA for v in values)


def _dag(launches: Sequence[Region], sharing: Sharing) -> Dag:
    writer: dict[int, int] = {}
    before: list[tuple[int, ...]] = []
    for number, region in enumerate(launches):
        read = (part for value in region.inputs for part in sharing.made_of(value))
        before.append(tuple(sorted({writer[v] for v in read if v in writer})))
        writer.update(dict.fromkeys(region.outputs, number))
    return Dag(tuple(before))


def _meet(
    steps: Sequence[Step], ordered: Ordered, inputs: Sequence[int], ends: Collection[int]
) -> Callable[[int, int], bool]:
    """A function that tells whether two values may exist at once.

    They may not where the last use of one ends before the other is written.
    """
    uses: dict[int, int] = {value: 1 << len(steps) for value in ends}  # a launch after all others
    begins: dict[int, int] = dict.fromkeys(inputs, 0)  # what has ended when it is first written
    for number, (reads, writes) in enumerate(steps):
        for value in (*reads, *writes):
            uses[value] = uses.get(value, 0) | 1 << number
        for value in writes:
            begins[value] = begins.get(value, ordered.before[number]) & ordered.before[number]
    for value in inputs:
        uses.setdefault(value, 1 << len(steps))  # no launch reads it, but it is copied into its buffer

    def meet(a: int, b: int) -> bool:
        return bool(uses.get(a, 0) & ~begins.get(b, 0)) and bool(uses.get(b, 0) & ~begins.get(a, 0))

    return meet
