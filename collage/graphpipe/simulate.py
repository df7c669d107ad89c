"""An event simulation of an iteration: passes, messages, all-reduces and updates, with memory over time.

A stage runs its actions in their order, each as soon as its messages are there. Messages of a stage leave one after
another, while it computes. The gradients are reduced, and the weights updated, after the last pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.errors import CollageError
from collage.graphpipe.costs import Costs
from collage.graphpipe.plan import Plan
from collage.graphpipe.schedule import Action, Actions, Pass, greedy, static_actions


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of a forward pass, of a backward pass, and of all-reduce and update together."""

    forward_s: float
    backward_s: float
    sync_s: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """Seconds a message needs on its way: ``latency_s``, and ``sample_s`` for each sample, during which it occupies its
    sender.
    """

    latency_s: float
    sample_s: float


@dataclass(frozen=True, slots=True)
class Span:
    """An action of a stage with its start and end in seconds."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """A simulated iteration: the spans of each stage, its end, and its most in-flight samples."""

    spans: tuple[tuple[Span, ...], ...]
    ends_s: tuple[float, ...]
    in_flight: tuple[int, ...]

    @property
    def iteration_s(self) -> float:
        """The seconds of the iteration."""
        return max(self.ends_s)


def stage_times(plan: Plan, costs: Costs) -> tuple[StageTimes, ...]:
    """The times of each stage by the tables of its blocks."""
    found = []
    for stage in plan.stages:
        blocks = [costs.graph.blocks[at] for at in stage.blocks]
        table = (stage.b // len(stage.devices)).bit_length() - 1
        link = costs.cluster.among(len(stage.devices))
        weights = sum(each.weight_bytes for each in blocks)
        found.append(
            StageTimes(
                sum(each.forward_s[table] for each in blocks),
                sum(each.backward_s[table] for each in blocks),
                link.ring_s(weights, len(stage.devices)) + sum(each.update_s for each in blocks),
            )
        )
    return tuple(found)


def transfers(plan: Plan, costs: Costs) -> dict[tuple[int, int], Transfer]:
    """The messages between stages, in both directions; without entry for stages that only wait for each other.

    Devices of both stages send and receive side by side. The link is the slowest one between them.
    """
    home = {block: at for at, stage in enumerate(plan.stages) for block in stage.blocks}
    cut: dict[tuple[int, int], list[float]] = {}
    for edge in costs.graph.edges:
        if (pair := (home[edge.source], home[edge.target]))[0] != pair[1]:
            cut.setdefault(pair, []).append(edge.nbytes)
    found = {}
    for (one, other), sizes in cut.items():
        senders, receivers = plan.stages[one].devices, plan.stages[other].devices
        links = [costs.cluster.link(x, y) for x in senders for y in receivers]
        link = min(links, key=lambda each: each.bandwidth)
        sample_s = sum(sizes) / min(len(senders), len(receivers)) / link.bandwidth
        found[one, other] = found[other, one] = Transfer(len(sizes) * link.latency_s, sample_s)
    return found


def simulate(
    plan: Plan,
    times: Sequence[StageTimes],
    messages: Mapping[tuple[int, int], Transfer],
    actions: Sequence[Actions | None],
) -> Timeline:
    """Run all stages that have actions. Raises CollageError if they wait for each other in a circle."""
    count = len(plan.stages)
    arrivals: dict[tuple[int, int], list[float]] = {}
    free, sender_free = [0.0] * count, [0.0] * count
    spans: list[list[Span]] = [[] for _ in range(count)]
    now, most = [0] * count, [0] * count
    active = [each for each in range(count) if actions[each] is not None]
    needs = {
        (at, kind): [(arrivals.setdefault((each, at), []), plan.stages[each].b) for each in of[at] if each in active]
        for at in active
        for kind, of in ((Pass.FORWARD, plan.predecessors), (Pass.BACKWARD, plan.successors))
    }
    gives = {
        (at, kind): [(each, arrivals.setdefault((at, each), []), messages.get((at, each))) for each in of[at]]
        for at in active
        for kind, of in ((Pass.FORWARD, plan.successors), (Pass.BACKWARD, plan.predecessors))
    }
    todo = [*active]
    while todo:
        at = todo.pop()
        b, planned = plan.stages[at].b, actions[at] or ()
        while len(spans[at]) < len(planned):
            action = planned[len(spans[at])]
            start = free[at]
            samples = (action.index + 1) * b
            for arrived, its in needs[at, action.kind]:
                last = -(-samples // its) - 1
                if last >= len(arrived):
                    break
                start = max(start, arrived[last])
            else:
                forward = action.kind is Pass.FORWARD
                end = free[at] = start + (times[at].forward_s if forward else times[at].backward_s)
                spans[at].append(Span(action, start, end))
                now[at] += b if forward else -b
                most[at] = max(most[at], now[at])
                for other, arrived, transfer in gives[at, action.kind]:
                    if transfer is None:
                        arrived.append(end)
                    else:
                        sender_free[at] = max(sender_free[at], end) + transfer.sample_s * b
                        arrived.append(sender_free[at] + transfer.latency_s)
                    if other in active and other not in todo:
                        todo.append(other)
                continue
            break
    for at in active:
        if len(spans[at]) < len(actions[at] or ()):
            raise CollageError(
                f"the schedule never ends: stage {at} waits for ever before {(actions[at] or ())[len(spans[at])]}."
            )
    ends = [free[at] + times[at].sync_s if at in active else 0.0 for at in range(count)]
    return Timeline(tuple(map(tuple, spans)), tuple(ends), tuple(most))


def simulated(plan: Plan, costs: Costs, actions: Sequence[Actions] | None = None) -> Timeline:
    """Simulate a plan by the tables of its blocks; by kFkB if there are no ``actions``."""
    return simulate(plan, stage_times(plan, costs), transfers(plan, costs), actions or static_actions(plan))


def greedy_actions(plan: Plan, costs: Costs) -> tuple[Actions, ...]:
    """Algorithm 4 with the simulator as its clock; it simulates each stage as often as it has passes."""
    times, messages = stage_times(plan, costs), transfers(plan, costs)

    def finish(at: int, actions: Sequence[Actions | None]) -> float:
        below = {at}
        for each in range(at + 1, len(plan.stages)):
            if below & {*plan.predecessors[each]}:
                below.add(each)
        alone = [each if number in below else None for number, each in enumerate(actions)]
        try:
            return simulate(plan, times, messages, alone).spans[at][-1].end_s
        except CollageError:  # it never ends
            return float("inf")

    return greedy(plan, finish)
