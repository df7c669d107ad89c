"""The order of the passes of each stage, which a runtime follows: kFkB, and the greedy schedule of Algorithm 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from collage.graphpipe.plan import Plan, Stage


class Pass(Enum):
    """A pass of a micro-batch through a stage."""

    FORWARD = "F"
    BACKWARD = "B"


@dataclass(frozen=True, slots=True)
class Action:
    """A pass of the micro-batch number ``index`` of a stage: the samples from ``index * b`` on."""

    kind: Pass
    index: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.index}"


Actions: TypeAlias = "tuple[Action, ...]"


def kfkb(stage: Stage, mini_batch: int) -> Actions:
    """As many forward passes as are in flight, then k backward ones by turns with k forward ones, then the rest."""
    start = tuple(Action(Pass.FORWARD, at) for at in range(stage.in_flight // stage.b))
    return _finished(start, mini_batch // stage.b, stage.k)


def _finished(actions: Actions, count: int, k: int = 1) -> Actions:
    """The actions and those that are missing of ``count`` micro-batches: k backward passes by turns with k forward."""
    found = [*actions]
    done = sum(each.kind is Pass.BACKWARD for each in found)
    begun = len(found) - done
    while done < count:
        backward = min(k, begun - done) if begun < count else count - done
        found += (Action(Pass.BACKWARD, at) for at in range(done, done + backward))
        done += backward
        forward = min(k, count - begun)
        found += (Action(Pass.FORWARD, at) for at in range(begun, begun + forward))
        begun += forward
    return tuple(found)


def peak(actions: Actions) -> int:
    """The most micro-batches that have had a forward pass and no backward pass yet."""
    most = now = 0
    for each in actions:
        now += 1 if each.kind is Pass.FORWARD else -1
        most = max(most, now)
    return most


def static_actions(plan: Plan) -> tuple[Actions, ...]:
    """The kFkB schedule of each stage."""
    return tuple(kfkb(stage, plan.mini_batch) for stage in plan.stages)


Finish: TypeAlias = "Callable[[int, Sequence[Actions | None]], float]"
"""Seconds until a stage has finished, from it and the schedules of all stages; those without one are left out."""


def greedy(plan: Plan, finish: Finish) -> tuple[Actions, ...]:
    """Algorithm 4: each stage, from the last one on, runs a backward pass whenever that costs no time.

    ISTIMEOPTIMAL asks whether the stage, with those after it alone, finishes as early as with all forward passes first.
    """
    found: list[Actions | None] = [None] * len(plan.stages)
    for at in reversed(range(len(plan.stages))):
        count = plan.mini_batch // plan.stages[at].b
        chosen = [Action(Pass.FORWARD, 0)]

        def seconds(actions: Actions, at: int = at) -> float:
            return finish(at, [*found[:at], actions, *found[at + 1 :]])

        forwards = tuple(Action(Pass.FORWARD, each) for each in range(count))
        least = seconds(forwards + tuple(Action(Pass.BACKWARD, each) for each in range(count))) * (1 + 1e-9)
        while len(chosen) < 2 * count:
            done = sum(each.kind is Pass.BACKWARD for each in chosen)
            begun = len(chosen) - done
            backward = Action(Pass.BACKWARD, done)
            if begun == count or (begun > done and seconds(_finished((*chosen, backward), count)) <= least):
                chosen.append(backward)
            else:
                chosen.append(Action(Pass.FORWARD, begun))
        found[at] = tuple(chosen)
    return tuple(each for each in found if each is not None)
