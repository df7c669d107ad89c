"""From a placement to a program: the launch list and the memory plan, all that a run needs to know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from collage.backends.base import VIEW
from collage.graph.dataflow import TensorType
from collage.schedule.dag import Dag
from collage.schedule.memory import MemoryPlan, lifetimes, plan_memory
from collage.schedule.region import Region
from collage.schedule.schedule import TEAM, Ordered, Schedule

Step: TypeAlias = "tuple[Sequence[int], Sequence[int]]"
"""Values that a launch reads, and those it writes."""


@dataclass(frozen=True)
class Port:
    """An input or output of the model: name, value id, type."""

    name: str
    value: int
    type: TensorType


@dataclass(frozen=True)
class Program:
    """Regions in launch order, the types of the values between them, and where these live in the arena.

    ``aliases`` maps a value to the one whose buffer it shares (a view's result). ``constants`` are the
    outputs that are constants of the model, by value id.
    """

    regions: tuple[Region, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    types: Mapping[int, TensorType]
    aliases: Mapping[int, int]
    memory: MemoryPlan
    launches: tuple[Region, ...]
    """The regions that run a kernel: all but views that share their input's buffer."""
    ordered: Ordered
    """On which streams the launches run, and what waits for what; they stand in the order of the schedule."""
    threads: int
    """Of the team."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for the module file; the memory plan is made again on loading."""
        return {
            "regions": [r.to_json() for r in self.regions],
            "inputs": [[p.name, p.value] for p in self.inputs],
            "outputs": [[p.name, p.value] for p in self.outputs],
            "threads": self.threads,
            "types": {str(v): [list(t.shape), t.dtype] for v, t in self.types.items()},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Program:
        """The inverse of ``to_json``."""
        types = {int(v): TensorType(tuple(shape), dtype) for v, (shape, dtype) in data["types"].items()}
        return make_program(
            [Region.from_json(each) for each in data["regions"]],
            [Port(name, value, types[value]) for name, value in data["inputs"]],
            [Port(name, value, types[value]) for name, value in data["outputs"]],
            types,
            data["threads"],
        )


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
    aliases: dict[int, int] = {}
    for region in regions:
        if region.backend == VIEW and len(region.inputs) == 1:
            source = region.inputs[0]
            aliases[region.outputs[0]] = aliases.get(source, source)

    def root(value: int) -> int:
        return aliases.get(value, value)

    launches = tuple(r for r in regions if not (r.backend == VIEW and r.outputs[0] in aliases))
    steps = [([root(v) for v in r.inputs], list(r.outputs)) for r in launches]
    sizes = {value: kind.nbytes for value, kind in types.items()}
    ends = {root(p.value) for p in outputs}
    lives = lifetimes(steps, sizes, [p.value for p in inputs], ends)
    ordered = Ordered(_dag(steps), _schedule(launches, threads))
    side_by_side = ordered.schedule.count > 0
    memory = plan_memory(
        lives, _meet(steps, ordered, [p.value for p in inputs], ends) if side_by_side else None
    )
    return Program(
        tuple(regions),
        tuple(inputs),
        tuple(outputs),
        dict(types),
        aliases,
        memory,
        launches,
        ordered,
        threads,
    )


def _schedule(launches: Sequence[Region], threads: int) -> Schedule:
    streams = (r.stream if r.threads < threads else TEAM for r in launches)
    return Schedule(tuple(range(len(launches))), tuple(streams))


def _dag(steps: Sequence[Step]) -> Dag:
    writer: dict[int, int] = {}
    before: list[tuple[int, ...]] = []
    for number, (reads, writes) in enumerate(steps):
        before.append(tuple(sorted({writer[v] for v in reads if v in writer})))
        writer.update(dict.fromkeys(writes, number))
    return Dag(tuple(before))


def _meet(
    steps: Sequence[Step], ordered: Ordered, inputs: Sequence[int], ends: Collection[int]
) -> Callable[[int, int], bool]:
    """Whether two values may exist at once: unless the last use of one ends before the other is written."""
    uses: dict[int, int] = {value: 1 << len(steps) for value in ends}  # a launch after all others
    begins: dict[int, int] = {}  # what has ended when it is written; nothing for inputs
    for number, (reads, writes) in enumerate(steps):
        for value in (*reads, *writes):
            uses[value] = uses.get(value, 0) | 1 << number
        for value in writes:
            begins[value] = ordered.before[number]
    for value in inputs:
        uses.setdefault(value, 1 << len(steps))  # nobody reads it, but it is copied to its place

    def meet(a: int, b: int) -> bool:
        return bool(uses.get(a, 0) & ~begins.get(b, 0)) and bool(uses.get(b, 0) & ~begins.get(a, 0))

    return meet
