"""From a placement to a program: the launch list and the memory plan, all that a run needs to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage.backends.base import VIEW
from collage.graph.dataflow import TensorType
from collage.schedule.memory import MemoryPlan, lifetimes, plan_memory
from collage.schedule.region import Region


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

    @property
    def launches(self) -> tuple[Region, ...]:
        """The regions that run a kernel: all but views that share their input's buffer."""
        return tuple(r for r in self.regions if not (r.backend == VIEW and r.outputs[0] in self.aliases))

    def to_json(self) -> dict[str, Any]:
        """Plain values for the module file; the memory plan is made again on loading."""
        return {
            "regions": [r.to_json() for r in self.regions],
            "inputs": [[p.name, p.value] for p in self.inputs],
            "outputs": [[p.name, p.value] for p in self.outputs],
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
        )


def make_program(
    regions: Sequence[Region],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    types: Mapping[int, TensorType],
) -> Program:
    """Plan the memory of a launch list (regions in a topological order)."""
    aliases: dict[int, int] = {}
    for region in regions:
        if region.backend == VIEW and len(region.inputs) == 1:
            source = region.inputs[0]
            aliases[region.outputs[0]] = aliases.get(source, source)

    def root(value: int) -> int:
        return aliases.get(value, value)

    steps = [([root(v) for v in r.inputs], [v for v in r.outputs if v not in aliases]) for r in regions]
    sizes = {value: kind.nbytes for value, kind in types.items()}
    lives = lifetimes(steps, sizes, [p.value for p in inputs], {root(p.value) for p in outputs})
    return Program(tuple(regions), tuple(inputs), tuple(outputs), dict(types), aliases, plan_memory(lives))
