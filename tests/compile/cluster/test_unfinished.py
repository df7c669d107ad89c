"""What a crew asks of slots when the time is over; the part of Ray is played by answers that are there at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from collage.cluster.nodes import ClusterNode
from collage.cluster.ray_crew import RayCrew, _Place
from collage.core.deadline import BudgetOverError
from collage.measure.crew import Done, Worker
from tests.cluster.models import session_of


@dataclass(frozen=True)
class Counts:
    """A job whose parts are numbers."""

    size: int

    def run(self, worker: Worker) -> Iterator[int]:
        yield from range(self.size)


@dataclass
class Remote:
    """A method of an actor, which notes what it was asked and answers at once."""

    answer: Any
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def remote(self, *arguments: Any) -> str:
        self.asked.append(arguments)
        return f"{id(self)} {len(self.asked)}"


class MadeUpRay:
    """Ray with one actor."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers

    def wait(self, refs: Sequence[str], **_: Any) -> tuple[list[str], list[str]]:
        return [*refs][:1], [*refs][1:]

    def get(self, ref: str) -> Any:
        return self.answers


def test_parts_are_asked_for_by_the_number_of_the_job() -> None:
    session = session_of()
    left = iter([True, False])

    def check() -> None:
        if not next(left):
            raise BudgetOverError("the time is over")

    clock: Any = SimpleNamespace(init=session.init, deadline=SimpleNamespace(check=check))
    ray: Any = MadeUpRay([(0, "part")])
    actor: Any = SimpleNamespace(run=Remote(None), so_far=Remote(None), cancel=Remote(None))
    node = ClusterNode("id", "name", 1.0)
    crew = RayCrew(ray, [node], 1, clock, [_Place(node, 0, 1.0, actor, ready=True)])
    found: list[Done[Any]] = []
    with pytest.raises(BudgetOverError):
        found.extend(crew.run([Counts(2), Counts(1)]))
    first, second = (number for _, number in actor.run.asked)
    assert first != second
    assert actor.so_far.asked == [(second,)]
    assert found == [Done(0, ((0, "part"),)), Done(1, ((0, "part"),), "interrupted")]
    session.close()
