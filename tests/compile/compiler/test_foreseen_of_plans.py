"""What is foreseen of a plan's errors: with the spread of plans before it, and the same ever after."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from collage.compiler.foreseen import foreseen
from collage.compiler.metrics import Metric
from collage.compiler.plan_runs import PlanRuns
from collage.measure_db.database import Database

RNG = np.random.default_rng(3)
ERRORS = {name: np.exp(0.5 * RNG.standard_normal(12)).tolist() for name in ("first", "second", "exact")}


@pytest.fixture
def database(tmp_path: Path) -> Any:
    with Database(tmp_path / "db.sqlite") as found:
        yield found


def foreseen_by(
    database: Database, monkeypatch: pytest.MonkeyPatch, *names: str, digest: str | None = "samples"
) -> list[float]:
    nothing = cast("Any", None)
    runs = PlanRuns(nothing, database, nothing, 0, nothing)
    monkeypatch.setattr(PlanRuns, "_errors", lambda _, plan, __: tuple(ERRORS[plan.label]))
    monkeypatch.setattr(PlanRuns, "_on_samples", lambda _, plan, __: digest and f"{plan.label} on {digest}")
    accuracy = cast("Any", SimpleNamespace(asked=SimpleNamespace(metric=Metric())))
    plans = (SimpleNamespace(label=name, reduced=name != "exact") for name in names)
    return [runs.error_and_foreseen(cast("Any", plan), accuracy)[1] for plan in plans]


def test_plans_before_it_count_and_exact_ones_do_not(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, exact, second = foreseen_by(database, monkeypatch, "first", "exact", "second")
    assert first == foreseen(ERRORS["first"])
    assert exact == foreseen(ERRORS["exact"])
    assert second == foreseen(ERRORS["second"], [ERRORS["first"]]) != foreseen(ERRORS["second"])


def test_what_was_foreseen_stays(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, again = foreseen_by(database, monkeypatch, "first", "second", "first")
    assert again == first
    assert foreseen_by(database, monkeypatch, "second", "first") == [second, first]


def test_errors_by_a_function_of_the_users_are_not_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = foreseen_by(database, monkeypatch, "first", "second", digest=None)
    assert found == [foreseen(ERRORS["first"]), foreseen(ERRORS["second"])]
