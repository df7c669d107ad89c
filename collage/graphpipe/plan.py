"""A plan: stages with their blocks, micro-batches, devices and schedules; a value that can be written as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from collage.errors import UsageError
from collage.graphpipe.costs import Costs
from collage.graphpipe.inflight import Config, in_flight, schedule_stage

_FORMAT = "collage pipeline plan 1"


@dataclass(frozen=True)
class Stage:
    """A stage ⟨blocks, b, devices, k⟩ (§3.3): data parallel on its devices, which share each micro-batch of ``b``.

    ``in_flight`` is the most samples between their forward and their backward pass, on all devices together.
    """

    blocks: tuple[int, ...]
    b: int
    devices: tuple[int, ...]
    k: int
    in_flight: int

    @property
    def config(self) -> Config:
        """The schedule of the stage."""
        return Config(self.b, self.k, self.in_flight)


@dataclass(frozen=True)
class Plan:
    """Stages in a topological order, and the edges between them, which go from one to a later one.

    A ``chain`` runs its stages one after another, also those that do not depend on each other. ``network`` has the
    names of the blocks of the network that it is for; none in files of former versions.
    """

    mini_batch: int
    stages: tuple[Stage, ...]
    edges: tuple[tuple[int, int], ...]
    planner: str = ""
    network: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError unless there are stages, and their numbers are positive."""
        numbers = [self.mini_batch, *(each for stage in self.stages for each in (stage.b, stage.k))]
        if not self.stages or min(numbers) < 1:
            raise UsageError("a plan has stages, and its mini-batch, and their micro-batches and k, are above 0.")

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, those that follow it, ascending."""
        return tuple(tuple(sorted(y for x, y in self.edges if x == at)) for at in range(len(self.stages)))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, those that it follows, ascending."""
        return tuple(tuple(sorted(x for x, y in self.edges if y == at)) for at in range(len(self.stages)))

    def check_network(self, names: Sequence[str]) -> None:
        """Raise UsageError if the plan is for a network with other blocks than these."""
        stages = sum(len(each.blocks) for each in self.stages)
        mine, wanted = len(self.network) or stages, len(names)
        if mine != wanted:
            raise UsageError(f"the plan is for another network: it has {mine} blocks, and the network has {wanted}.")
        for at, (one, other) in enumerate(zip(self.network, names, strict=False)):
            if one != other:
                raise UsageError(f"the plan is for another network: its block {at} is {one}, and here it is {other}.")

    @cached_property
    def depth(self) -> int:
        """The most stages on a path."""
        depth = [0] * len(self.stages)
        for at in reversed(range(len(self.stages))):
            depth[at] = 1 + max((depth[after] for after in self.successors[at]), default=0)
        return max(depth)

    def tps(self, costs: Costs) -> float:
        """The most seconds per sample of a stage (Eq. 3.1)."""
        return max(costs.tps(each.blocks, each.b, len(each.devices)) for each in self.stages)

    def memory(self, costs: Costs) -> float:
        """The most bytes on a device (Eq. 3.2)."""
        return max(costs.memory(each.blocks, each.in_flight, len(each.devices)) for each in self.stages)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        return {
            "format": _FORMAT,
            "planner": self.planner,
            "network": list(self.network),
            "mini_batch": self.mini_batch,
            "stages": [
                {
                    "blocks": list(each.blocks),
                    "micro_batch": each.b,
                    "devices": list(each.devices),
                    "k": each.k,
                    "in_flight": each.in_flight,
                }
                for each in self.stages
            ],
            "edges": [list(each) for each in self.edges],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Plan:
        """The plan of a JSON object. Raises UsageError."""
        if not isinstance(value, Mapping) or value.get("format") != _FORMAT:
            raise UsageError(f'this is no plan: its "format" is not "{_FORMAT}".')
        try:
            stages = tuple(
                Stage(
                    tuple(map(int, each["blocks"])),
                    int(each["micro_batch"]),
                    tuple(map(int, each["devices"])),
                    int(each["k"]),
                    int(each["in_flight"]),
                )
                for each in value["stages"]
            )
            edges = tuple((int(one), int(other)) for one, other in value["edges"])
            network = tuple(map(str, value.get("network", ())))
            return Plan(int(value["mini_batch"]), stages, edges, str(value.get("planner", "")), network)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"the plan is malformed: {type(error).__name__}: {error}.") from error


@dataclass(frozen=True, slots=True)
class Choice:
    """A stage as a planner chooses it: blocks, micro-batch, number of devices, and k."""

    blocks: frozenset[int]
    b: int
    degree: int
    k: int = 1


def stage_edges(costs: Costs, parts: Sequence[Iterable[int]]) -> frozenset[tuple[int, int]]:
    """The pairs of parts with a data edge from the first to the second (C2)."""
    home = {block: number for number, part in enumerate(parts) for block in part}
    pairs = ((home[each.source], home[each.target]) for each in costs.graph.edges)
    return frozenset((one, other) for one, other in pairs if one != other)


def topological(count: int, edges: Iterable[tuple[int, int]]) -> list[int] | None:
    """An order of 0 .. count - 1 in which all edges point forward, the least number first; None if there is none."""
    left = {*edges}
    order: list[int] = []
    waiting = [*range(count)]
    while waiting:
        blocked = {other for _, other in left}
        at = next((each for each in waiting if each not in blocked), None)
        if at is None:
            return None
        waiting.remove(at)
        order.append(at)
        left = {each for each in left if each[0] != at}
    return order


def assemble(
    costs: Costs, choices: Sequence[Choice], planner: str, *, chain: bool = False, ks: Sequence[int] | None = None
) -> Plan:
    """The plan of chosen stages: their order, edges, in-flight samples and devices.

    The stages of a ``chain`` follow each other as they are given. ``ks`` has Algorithm 3 choose each k; else it is the
    given one. Raises UsageError if the stages depend on each other in a circle, or need too many devices.
    """
    edges = stage_edges(costs, [each.blocks for each in choices])
    if chain:
        edges |= {(at, at + 1) for at in range(len(choices) - 1)}
    by_block = sorted(range(len(choices)), key=lambda at: min(choices[at].blocks))
    rank = {at: number for number, at in enumerate(by_block)}
    order = topological(len(choices), {(rank[one], rank[other]) for one, other in edges})
    if order is None:
        raise UsageError("the stages depend on each other in a circle.")
    order = [by_block[each] for each in order]
    number = {at: position for position, at in enumerate(order)}
    devices = costs.cluster.placed([choices[at].degree for at in order])
    stages = tuple(
        Stage(tuple(sorted(choices[at].blocks)), choices[at].b, devices[number[at]], choices[at].k, 0) for at in order
    )
    numbered = tuple(sorted((number[one], number[other]) for one, other in edges))
    return scheduled(Plan(costs.mini_batch, stages, numbered, planner, costs.graph.names), ks)


def scheduled(plan: Plan, ks: Sequence[int] | None = None) -> Plan:
    """The plan with the in-flight samples of each stage, from the last one to the first (Algorithm 3)."""
    stages = [*plan.stages]
    for at in reversed(range(len(stages))):
        after = [stages[each].config for each in plan.successors[at]]
        stage = stages[at]
        if ks is None:
            config = Config(stage.b, stage.k, in_flight(stage.b, stage.k, after, plan.mini_batch))
        else:
            config = schedule_stage(stage.b, after, plan.mini_batch, ks)
        stages[at] = replace(stage, k=config.k, in_flight=config.in_flight)
    return replace(plan, stages=tuple(stages))
