"""Who ended a worker, as its files tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.measure.worker.plan_protocol import Stage
from collage.measure.worker.plan_trace import WorkerPosition, clock_of
from collage.schedule.dag import Dag
from collage.schedule.schedule import TEAM, Ordered, Schedule, running

DIAMOND = Dag.of_edges(4, [(0, 1), (0, 2), (1, 3), (2, 3)])


def test_the_place_is_seen_from_outside(tmp_path: Path) -> None:
    worker, compiler = WorkerPosition(tmp_path), WorkerPosition(tmp_path)
    worker.enter(Stage.CHECK, launch=7)
    assert compiler.now == (Stage.CHECK, 7)
    worker.enter(Stage.NOTED)
    assert compiler.now == (Stage.NOTED, -1)
    worker.mark()
    assert compiler.now[0] == Stage.TIMED
    clock_of(tmp_path, "plan", 3)[1] = 42
    assert clock_of(tmp_path, "plan", 3).tolist() == [0, 42, 0]
    assert clock_of(tmp_path, "views only", 0).tolist() == []


@pytest.mark.parametrize(
    ("clock", "found"), [([0, 0, 0, 0], 0), ([9, 0, 0, 0], 1), ([9, 9, 9, 0], 3), ([9, 9, 9, 9], None)]
)
def test_one_after_another(clock: list[int], found: int | None) -> None:
    assert running(Ordered(DIAMOND, Schedule.sequential(4)), clock) == found


def test_side_by_side_it_may_be_any_of_those_that_could_run() -> None:
    ordered = Ordered(DIAMOND, Schedule((0, 1, 2, 3), (TEAM, 0, 1, TEAM)))
    assert running(ordered, [9, 0, 0, 0]) is None
    assert running(ordered, [9, 9, 0, 0]) == 2
    assert running(ordered, [9, 0, 9, 0]) == 1
    assert running(ordered, [9, 9, 9, 0]) == 3
