"""From a placement to a program: the launch list and the memory plan, all that a run needs to know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from collage.graph.dataflow import TensorType
from collage.schedule.dag import Dag
from collage.schedule.memory import MemoryPlan, lifetimes, plan_memory
from collage.schedule.region import Region
from collage.schedule.schedule import TEAM, Ordered, Schedule
from collage.schedule.sharing import Place, Sharing, overwrite_in_place
from collage.schedule.suffix import Suffix, ValuePort

Step: TypeAlias = "tuple[Sequence[int], Sequence[int]]"
"""Values that a launch reads, and those it writes."""


@dataclass(frozen=True)
class Port:
    """An input or output of the model: name, value id, type.

    Inputs that are used as indices have the number of ``rows`` that they index, or one for each column of the last
    axis.
    """

    name: str
    value: int
    type: TensorType
    rows: int | tuple[int, ...] | None = None


@dataclass(frozen=True)
class Program:
    """Regions in launch order, the types of the values between them, and where these live in the arena.

    ``aliases`` tells where values are that are in the buffer of another: results of views, what a view joins, and
    results that overwrite an input.
    """

    regions: tuple[Region, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    types: Mapping[int, TensorType]
    aliases: Mapping[int, Place]
    memory: MemoryPlan
    launches: tuple[Region, ...]
    """The regions that run a kernel: all but views that share their input's buffer."""
    ordered: Ordered
    """On which streams the launches run, and what waits for what; they stand in the order of the schedule."""
    threads: int
    """Of the team."""
    suffix: Suffix | None = None
    """What one engine runs after all launches, and the whole model's inputs and outputs; the last of the regions."""

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

    def place(self, value: int) -> Place:
        """The buffer that the value is in, and where."""
        return self.aliases.get(value, Place(value, 0))

    def offset(self, value: int) -> int:
        """Where the value is in the arena, in bytes."""
        place = self.place(value)
        return self.memory.offsets[place.base] + place.offset

    @property
    def is_guarded(self) -> bool:
        """Whether some values are scanned for NaN, infinities and huge magnitudes."""
        return any(region.scans for region in self.launches)

    @property
    def value_bytes(self) -> int:
        """Of all values that kernels make or callers give, as if each had a buffer of its own."""
        launched = set(self.launches)
        made = [v for r in self.regions if r in launched or len(r.inputs) > 1 for v in r.outputs]
        return sum(self.types[v].nbytes for v in (*(p.value for p in self.inputs), *made))

    def to_json(self) -> dict[str, Any]:
        """Plain values for the module file; the memory plan is made again on loading."""
        return {
            "regions": [
                r.to_json() for r in self.regions if self.suffix is None or r is not self.suffix.region
            ],
            "inputs": [[p.name, p.value, p.rows] for p in self.inputs],
            "outputs": [[p.name, p.value] for p in self.outputs],
            "threads": self.threads,
            "types": {str(v): [list(t.shape), t.dtype] for v, t in self.types.items()},
            # Files call the suffix "tail", so that those of earlier versions can be read.
            "tail": None if self.suffix is None else self.suffix.to_json(),
        }


def make_program(
    regions: Sequence[Region],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    types: Mapping[int, TensorType],
    threads: int = 1,
) -> Program:
    """Plan the memory of a launch list (regions in a topological order).

    A region of one thread in a program for several ``threads`` is one of its stream; all others take the whole team.
    """
    sharing = Sharing(types, frozenset(p.value for p in inputs))
    launches = tuple(r for r in regions if not sharing.view(r))
    ordered = Ordered(_dag(launches, sharing), _schedule(launches, threads))
    overwrite_in_place(sharing, launches, ordered.before, [p.value for p in (*inputs, *outputs)])
    steps: list[Step] = [
        ([sharing.base(v) for v in r.inputs], [sharing.base(v) for v in r.outputs]) for r in launches
    ]
    given, ends = ([sharing.base(p.value) for p in ports] for ports in (inputs, outputs))
    sizes = {value: kind.nbytes for value, kind in types.items()}
    lives = lifetimes(steps, sizes, given, ends)
    meet = _meet(steps, ordered, given, ends) if ordered.schedule.count > 0 else None
    return Program(
        tuple(regions),
        tuple(inputs),
        tuple(outputs),
        dict(types),
        sharing.places(),
        plan_memory(lives, meet),
        launches,
        ordered,
        threads,
    )


def _schedule(launches: Sequence[Region], threads: int) -> Schedule:
    streams = (r.stream if r.threads < threads else TEAM for r in launches)
    return Schedule(tuple(range(len(launches))), tuple(streams))


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
    """Whether two values may exist at once: unless the last use of one ends before the other is written."""
    uses: dict[int, int] = {value: 1 << len(steps) for value in ends}  # a launch after all others
    begins: dict[int, int] = dict.fromkeys(inputs, 0)  # what has ended when it is first written
    for number, (reads, writes) in enumerate(steps):
        for value in (*reads, *writes):
            uses[value] = uses.get(value, 0) | 1 << number
        for value in writes:
            begins[value] = begins.get(value, ordered.before[number]) & ordered.before[number]
    for value in inputs:
        uses.setdefault(value, 1 << len(steps))  # nobody reads it, but it is copied to its place

    def meet(a: int, b: int) -> bool:
        return bool(uses.get(a, 0) & ~begins.get(b, 0)) and bool(uses.get(b, 0) & ~begins.get(a, 0))

    return meet
