"""The first module: the engines on the whole model, with made-up trials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collage.compiler.events import Measured
from collage.compiler.passes.first_module import FirstModule
from collage.measure.whole_trial import EngineTrial
from collage.measure_db.database import Database
from tests.compile.compiler.test_run_whole import timing, trial
from tests.compiler.null import Made, NullBackend, NullEngine

__all__ = ["trial"]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    engines = NullEngine("slow"), NullEngine("fast"), NullBackend("lib")
    with Database(tmp_path / "db.sqlite") as database:
        yield Made({}, *engines, database=database)


def test_the_fastest_engine_is_ready_to_be_handed_over(made: Made, trial: list[EngineTrial]) -> None:
    trial.append(EngineTrial({"slow": timing(9e3), "fast": timing(4e3)}, {"slow": (0, 0), "fast": (0, 0)}))
    for measurements in (2, 0):  # the second time it is known
        found = FirstModule()(made.context, made.start)
        assert found.first is not None and found.first.engine == "fast"
        assert found.selected is None
        assert found.log == (Measured(measurements),)
    assert [(each.label, each.latency_ms) for each in made.context.course.best] == [("fast, as written", 4.0)]
    assert made.context.course.best_text == "best so far 4 ms (fast, as written)"


def test_without_an_engine_that_runs_it_there_is_none(made: Made, trial: list[EngineTrial]) -> None:
    trial.append(EngineTrial(refused={"slow": "no", "fast": "no"}))
    assert FirstModule()(made.context, made.start).first is None
    assert made.context.course.best == []


def test_an_engine_that_was_not_measured_is_no_first_module(made: Made, trial: list[EngineTrial]) -> None:
    trial.append(EngineTrial(refused={"slow": "no"}, loaded=("fast",)))
    assert FirstModule()(made.context, made.start).first is None


def test_without_engines_nothing_is_tried() -> None:
    made = Made({}, NullBackend("lib"))
    assert FirstModule()(made.context, made.start) is made.start
