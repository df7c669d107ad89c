"""An independent check of a plan: conditions C1 to C5 of §3.3, memory, and that its schedule ends.

It shares no code with the planners: it reads the graph, the cluster and the actions alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from collage.errors import CollageError
from collage.graphpipe.cluster import Cluster
from collage.graphpipe.graph import BlockGraph
from collage.graphpipe.plan import Plan
from collage.graphpipe.schedule import Actions, Pass


class PlanError(CollageError):
    """A plan breaks a condition; the message names it."""


def check(plan: Plan, graph: BlockGraph, cluster: Cluster, actions: Sequence[Actions]) -> None:
    """Raise PlanError if the plan with these actions breaks a condition. Devices that no stage has stay idle."""
    for condition in (_stages(plan, graph), _devices(plan, cluster), _orders(plan, actions), _across(plan, actions)):
        for problem in condition:
            raise PlanError(problem)
    for problem in _memory(plan, graph, cluster, actions):
        raise PlanError(problem)


def _stages(plan: Plan, graph: BlockGraph) -> Iterator[str]:
    home: dict[int, int] = {}
    for at, stage in enumerate(plan.stages):
        for block in stage.blocks:
            if block in home or not 0 <= block < len(graph.blocks):
                yield f"C1: block {block} of stage {at} is in no graph or in two stages."
            home[block] = at
    if len(home) < len(graph.blocks):
        yield f"C1: no stage has block {min({*range(len(graph.blocks))} - {*home})}."
    reach = [{at} for at in range(len(graph.blocks))]
    for edge in sorted(graph.edges, key=lambda each: -each.source):
        reach[edge.source] |= reach[edge.target]
    for one in range(len(graph.blocks)):
        for other in reach[one]:
            if home[other] != home[one] and any(home[each] == home[one] for each in reach[other]):
                yield f"C1: stage {home[one]} is not convex: block {other} is on a path inside."
    for edge in graph.edges:
        if home[edge.source] != home[edge.target] and (home[edge.source], home[edge.target]) not in plan.edges:
            yield f"C2: there is no edge from stage {home[edge.source]} to {home[edge.target]}."
    for one, other in plan.edges:
        if not 0 <= one < other < len(plan.stages):
            yield f"the edge from stage {one} to {other} does not go from one to a later one."


def _devices(plan: Plan, cluster: Cluster) -> Iterator[str]:
    taken = [device for stage in plan.stages for device in stage.devices]
    if len({*taken}) < len(taken) or not {*taken} <= {*range(cluster.devices)}:
        yield "C3: a device is in two stages, or not in the cluster."
    for at, stage in enumerate(plan.stages):
        if not stage.devices:
            yield f"C3: stage {at} has no device."
        elif plan.mini_batch % stage.b or stage.b % len(stage.devices):
            yield f"stage {at}: {stage.b} samples divide no mini-batch, or are not shared equally by its devices."


def _orders(plan: Plan, actions: Sequence[Actions]) -> Iterator[str]:
    if len(actions) != len(plan.stages):
        yield f"C4: there are {len(actions)} schedules for {len(plan.stages)} stages."
        return
    for at, (stage, mine) in enumerate(zip(plan.stages, actions, strict=True)):
        wanted = [*range(plan.mini_batch // stage.b)]
        for kind in Pass:
            if [each.index for each in mine if each.kind is kind] != wanted:
                yield f"C4: the {kind.name.lower()} passes of stage {at} are not each micro-batch once, in order."
        place = {(each.kind, each.index): number for number, each in enumerate(mine)}
        for index in wanted:
            if place.get((Pass.BACKWARD, index), len(mine)) < place.get((Pass.FORWARD, index), 0):
                yield f"C4: stage {at} runs backward pass {index} before its forward pass."


def _across(plan: Plan, actions: Sequence[Actions]) -> Iterator[str]:
    """C5: with the dependencies between stages, and the orders inside, all passes have an order."""
    nodes = {(at, each.kind, each.index) for at, mine in enumerate(actions) for each in mine}
    after: dict[tuple[int, Pass, int], list[tuple[int, Pass, int]]] = {each: [] for each in nodes}
    waits = dict.fromkeys(nodes, 0)

    def order(one: tuple[int, Pass, int], other: tuple[int, Pass, int]) -> None:
        after[one].append(other)
        waits[other] += 1

    for at, mine in enumerate(actions):
        for one, other in pairwise(mine):
            order((at, one.kind, one.index), (at, other.kind, other.index))
    for before, later in plan.edges:
        small, large = plan.stages[before].b, plan.stages[later].b
        for sample in range(0, plan.mini_batch, min(small, large)):
            order((before, Pass.FORWARD, sample // small), (later, Pass.FORWARD, sample // large))
            order((later, Pass.BACKWARD, sample // large), (before, Pass.BACKWARD, sample // small))
    ready = [each for each, count in waits.items() if not count]
    done = 0
    while ready:
        done += 1
        for each in after[ready.pop()]:
            waits[each] -= 1
            if not waits[each]:
                ready.append(each)
    if done < len(nodes):
        at, kind, index = min((each for each, count in waits.items() if count), key=lambda each: (each[0], each[2]))
        yield f"C5: stage {at} waits for ever before {kind.name.lower()} pass {index}."


def _memory(plan: Plan, graph: BlockGraph, cluster: Cluster, actions: Sequence[Actions]) -> Iterator[str]:
    for at, (stage, mine) in enumerate(zip(plan.stages, actions, strict=True)):
        now = most = 0
        for each in mine:
            now += 1 if each.kind is Pass.FORWARD else -1
            most = max(most, now)
        if most * stage.b > stage.in_flight:
            yield f"stage {at} has {most * stage.b} samples in flight, and its plan says {stage.in_flight}."
        blocks = [graph.blocks[block] for block in stage.blocks]
        need = graph.state_factor * sum(each.weight_bytes for each in blocks)
        need += sum(each.activation_bytes for each in blocks) * most * stage.b / len(stage.devices)
        if need > cluster.memory_bytes * (1 + 1e-9):
            yield f"memory: stage {at} needs {need / 1e9:.3g} GB of a device's {cluster.memory_bytes / 1e9:.3g} GB."
