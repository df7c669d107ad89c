"""Which samples of which value each device sends to which other one: a static list, the same on every device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from collage.errors import UsageError
from collage.graphpipe.plan import Plan
from collage.graphpipe.schedule import Pass, static_actions
from collage.graphpipe.simulate import StageTimes, simulate


@dataclass(frozen=True, slots=True)
class Wire:
    """A value that the stage ``target`` reads from the stage ``source``. ``grad``: its gradient is sent back."""

    value: str
    source: int
    target: int
    grad: bool


@dataclass(frozen=True, slots=True)
class Message:
    """The samples ``start`` to ``stop`` of a wire's value, from rank ``sender`` to rank ``receiver``.

    The gradient of these samples goes the other way. ``number`` is that of the message among all.
    """

    wire: Wire
    sender: int
    receiver: int
    start: int
    stop: int
    number: int


@dataclass(frozen=True)
class Wiring:
    """The ranks of a plan, its devices in ascending order, and all messages of an iteration between them."""

    plan: Plan
    wires: tuple[Wire, ...]

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The device of each rank."""
        return tuple(sorted(device for stage in self.plan.stages for device in stage.devices))

    @cached_property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each stage."""
        rank = {device: at for at, device in enumerate(self.devices)}
        return tuple(tuple(rank[each] for each in stage.devices) for stage in self.plan.stages)

    def place(self, rank: int) -> tuple[int, int]:
        """The stage of a rank, and its number among the ranks of the stage."""
        return next((at, ranks.index(rank)) for at, ranks in enumerate(self.ranks) if rank in ranks)

    def share(self, stage: int) -> int:
        """The samples of a micro-batch that each device of a stage computes."""
        found = self.plan.stages[stage]
        return found.b // len(found.devices)

    def samples(self, rank: int, index: int) -> range:
        """The samples of micro-batch ``index`` that a rank computes."""
        stage, number = self.place(rank)
        start = index * self.plan.stages[stage].b + number * self.share(stage)
        return range(start, start + self.share(stage))

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """All messages of an iteration."""
        found: list[Message] = []
        for wire in self.wires:
            step = math.gcd(self.share(wire.source), self.share(wire.target))
            last = (-1, -1, -1, -1)
            for start in range(0, self.plan.mini_batch, step):
                one, other = self._owner(wire.source, start), self._owner(wire.target, start)
                if last == (key := (*one, *other)):  # the same shares go on
                    before = found.pop()
                    start, number = before.start, before.number
                    stop = before.stop + step
                else:
                    number, stop = len(found), start + step
                found.append(Message(wire, one[0], other[0], start, stop, number))
                last = key
        return tuple(found)

    def _owner(self, stage: int, sample: int) -> tuple[int, int]:
        """The rank of a stage that computes a sample, and the micro-batch."""
        found = self.plan.stages[stage]
        return self.ranks[stage][sample % found.b // self.share(stage)], sample // found.b

    def incoming(self, rank: int, kind: Pass, index: int) -> tuple[Message, ...]:
        """The messages that a pass of a micro-batch on a rank waits for."""
        return self._by_pass.get((kind is Pass.FORWARD, False, rank, index), ())

    def outgoing(self, rank: int, kind: Pass, index: int) -> tuple[Message, ...]:
        """The messages that a pass of a micro-batch on a rank ends with."""
        return self._by_pass.get((kind is Pass.FORWARD, True, rank, index), ())

    @cached_property
    def _by_pass(self) -> dict[tuple[bool, bool, int, int], tuple[Message, ...]]:
        found: dict[tuple[bool, bool, int, int], list[Message]] = {}
        for each in self.messages:
            ends = ((each.sender, each.wire.source, True), (each.receiver, each.wire.target, False))
            for rank, stage, sends in ends:
                index = each.start // self.plan.stages[stage].b
                found.setdefault((True, sends, rank, index), []).append(each)
                if each.wire.grad:
                    found.setdefault((False, not sends, rank, index), []).append(each)
        return {key: tuple(messages) for key, messages in found.items()}


def check_fit(plan: Plan, names: Sequence[str], edges: Sequence[tuple[int, int]]) -> None:
    """Raise CollageError if a plan is not one for a graph of blocks with these names and edges, or cannot run."""
    plan.check_network(names)
    home = {block: at for at, stage in enumerate(plan.stages) for block in stage.blocks}
    if sorted(each for stage in plan.stages for each in stage.blocks) != [*range(len(names))]:
        raise UsageError(f"the plan is malformed: its stages do not have each of {len(names)} blocks once.")
    for one, other in edges:
        if home[one] != home[other] and (home[one], home[other]) not in plan.edges:
            raise UsageError(
                f"the plan is for another network: it has no edge from stage {home[one]}, which has block {one}, to "
                f"stage {home[other]}, which has block {other}."
            )
    devices = [device for stage in plan.stages for device in stage.devices]
    if len({*devices}) < len(devices):
        raise UsageError("the plan has a device in two stages.")
    for at, stage in enumerate(plan.stages):
        if not stage.devices or plan.mini_batch % stage.b or stage.b % len(stage.devices):
            raise UsageError(f"stage {at}: its micro-batch divides no mini-batch, or its devices cannot share it.")
    simulate(plan, [StageTimes(1.0, 1.0, 0.0)] * len(plan.stages), {}, static_actions(plan))
