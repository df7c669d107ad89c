"""A glance at the placement so far, with made-up times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collage.compiler.passes.calibrate import Calibrate
from collage.compiler.passes.first_module import FirstModule
from collage.compiler.passes.fixpoint import Fixpoint
from collage.compiler.passes.glance import Glance
from collage.compiler.passes.place import Place
from collage.compiler.plan import Plan, StreamPlan
from collage.compiler.state import Compilation
from collage.measure.whole_trial import EngineTrial
from collage.measure_db.database import Database
from collage.schedule.schedule import TEAM, Schedule
from tests.compile.compiler.test_run_whole import timing, trial
from tests.compiler.null import Made, NullBackend, NullEngine, each_node

__all__ = ["trial"]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    with Database(tmp_path / "db.sqlite") as database:
        yield Made(
            each_node("lib", 10.0),
            NullEngine("slow"),
            NullEngine("fast"),
            NullBackend("lib"),
            database=database,
        )


def placed(made: Made, trial: list[EngineTrial], engine_us: float) -> Compilation:
    """A placement of four kernels of 10 us, after a first module on an engine that takes so long."""
    trial.append(
        EngineTrial({"slow": timing(1e4), "fast": timing(engine_us)}, {"slow": (0, 0), "fast": (0, 0)})
    )
    first = FirstModule()(made.context, made.measured())
    return Fixpoint(Place(), Calibrate())(made.context, first)


def test_a_faster_placement_is_the_best_so_far(made: Made, trial: list[EngineTrial]) -> None:
    start = placed(made, trial, 90.0)
    assert Glance()(made.context, start) is start
    assert [each.label for each in made.context.course.best] == ["fast, as written", "collage"]


def test_a_slower_one_is_not(made: Made, trial: list[EngineTrial]) -> None:
    start = placed(made, trial, 5.0)
    made.runs.whole_us = {"fast, as written": 5.0}
    Glance()(made.context, start)
    assert [each.label for each in made.context.course.best] == ["fast, as written"]


def test_a_concurrent_plan_is_looked_at_beside_the_placement(made: Made, trial: list[EngineTrial]) -> None:
    start = placed(made, trial, 90.0)
    ran = list(made.runs.ran)
    assert Glance(of_streams=True)(made.context, start) is start and made.runs.ran == ran
    streams = StreamPlan(Schedule((0, 1, 2, 3), (TEAM,) * 4), (None,) * 4, "list")
    plan = Plan("concurrent", replace(start.placed.placement, predicted_us=7.0), False, streams=streams)
    made.runs.whole_us = {"concurrent": 7.0}
    Glance(of_streams=True)(made.context, replace(start, plans=(*start.plans, plan)))
    assert [each.label for each in made.context.course.best] == ["fast, as written", "concurrent"]


def test_without_a_first_module_nothing_is_run(made: Made) -> None:
    start = Fixpoint(Place(), Calibrate())(made.context, made.measured())
    ran = list(made.runs.ran)
    assert Glance()(made.context, start) is start
    assert made.runs.ran == ran
