"""A compile that is stopped at any step hands over the best plan that is checked, with made-up costs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from collage.compiler.clock import Budget
from collage.compiler.plan import Placed, Selection
from collage.core.deadline import BudgetOverError
from collage.errors import DatabaseError, MeasurementError
from collage.measure.timing.effort import QUICK
from collage.measure_db.database import Database
from tests.helpers.compiler.null import Costs, Made, NullBackend, NullEngine, each_node

COSTS: Costs = {
    **each_node("lib", 10.0),
    **each_node("other", 12.0),
    ("other", (1, 2)): 15.0,
    **each_node("lib bf16", 4.0),
}
ENGINE = "engine, as written"
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/inputs-1")


def made(**options: object) -> Made:
    libraries = NullBackend("lib", team=True), NullBackend("other", team=True)
    engines = {ENGINE: 70.0, f"{ENGINE}, turbo": 60.0, f"{ENGINE}, bf16": 65.0}
    return Made(
        COSTS,
        *libraries,
        NullEngine("engine", ["", "turbo"], "bf16"),
        engines=engines,
        **options,  # type: ignore[arg-type]
    )


def taken(**options: object) -> tuple[list[str], int]:
    """The steps of a compile that nobody stops, and the number of those before there is a plan."""
    each = made(**options)
    each.compiled()
    return each.step.taken, next(n for n, step in enumerate(each.step.taken) if step.startswith("switch"))


def stopped(at: int, error: BaseException, **options: object) -> tuple[Made, Selection]:
    """A compile that is stopped at the step of that number."""
    each = made(budget_s=60.0, **options)
    each.step.at, each.step.error = at, error
    try:
        return each, each.compiled()
    except KeyboardInterrupt:
        pytest.fail(f"Ctrl-C at {at} was too much: {each.step.taken[at]}")


def is_checked(each: Made, found: Selection) -> bool:
    """Whether the plan was run beside others, and a placement checked and loaded."""
    if not isinstance(found.plan, Placed):
        return found.plan.label in each.engines.turns
    return found.plan in [e.plan for e in each.runs.checked] and each.runs.loaded[-1].plan == found.plan


WHYS = [
    (BudgetOverError(), "budget"),
    (KeyboardInterrupt(), "interrupt"),
    (MeasurementError("the files cannot be written."), "failure"),
    (DatabaseError("the database is full."), "failure"),
]


@pytest.mark.parametrize(
    ("why", "ended", "options"),
    [(*each, {}) for each in WHYS] + [(*WHYS[1], {"effort": QUICK}), (*WHYS[1], {"tolerance": 0.05})],
    ids=["budget", "Ctrl-C", "worker", "database", "quick", "bf16"],
)
def test_a_stop_at_any_step_hands_over_the_best_so_far(
    why: BaseException, ended: str, options: dict[str, object]
) -> None:
    steps, first = taken(**options)
    for at in range(first, len(steps)):
        each, found = stopped(at, why, **options)
        assert is_checked(each, found), f"{at}: {steps[at]}"
        # The last race comes after the search, which has ended by itself then.
        assert each.clock.ended in (ended, "finished"), f"{at}: {steps[at]}"
        best = each.best.first
        assert best is not None and found.measured_us <= 1.02 * best.us, f"{at}: {steps[at]}"
        assert each.measurer.closed


def test_ctrl_c_before_there_is_a_plan_and_ctrl_c_again_end_the_compile() -> None:
    first = taken()[1]
    for at in range(3):
        each = made()
        each.step.at = at
        with pytest.raises(KeyboardInterrupt):
            each.compiled()
        assert each.engines.closed
    each = made()
    each.step.at, each.step.also = first, lambda step: step.startswith("hostile")
    with pytest.raises(KeyboardInterrupt):
        each.compiled()
    assert each.measurer.closed and each.engines.closed


@pytest.mark.parametrize("error", [MeasurementError("no room."), FULL, DatabaseError("it is full.")])
def test_a_failure_that_lasts_hands_over_the_fastest_engine(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    steps = taken()[0]
    each = made()
    each.step.at, each.step.error, each.step.also = len(steps) - 3, error, lambda _: True
    found = each.compiled()
    assert found.plan.label == f"{ENGINE}, turbo" and found.measured_us == 60.0
    assert each.clock.ended == "failure"
    assert "Handing over the fastest engine." in caplog.text
    early = made()
    early.step.at, early.step.error = 1, error
    with pytest.raises(type(error)):
        early.compiled()


def test_a_database_that_fails_goes_on_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Database(tmp_path / "db.sqlite") as database:
        each = made(database=database)
        each.bench.model  # noqa: B018  (finds the offers)
        database.run("PRAGMA query_only = 1")
        with pytest.raises(DatabaseError):
            each.compiled()  # there is no plan yet
        each = made(database=database)
        database.run("PRAGMA query_only = 0")
        each.step.at, each.step.error = taken()[1], DatabaseError("it is full.")
        assert is_checked(each, each.compiled())
        assert "Handing over the best module so far." in caplog.text


@pytest.mark.parametrize(
    "at", ["switch", "measure lib (3,)", "measure other (3,)", "open lib", "turn lib", "times lib"]
)
def test_without_an_engine_the_budget_is_exceeded_until_there_is_a_placement(
    at: str, caplog: pytest.LogCaptureFixture
) -> None:
    def alone() -> Made:
        return Made(COSTS, NullBackend("lib", team=True), NullBackend("other", team=True), budget_s=60.0)

    usual = alone()
    usual.compiled()
    each = alone()
    each.step.at = next(n for n, step in enumerate(usual.step.taken) if step.startswith(at))
    each.step.error = BudgetOverError()
    found = each.compiled()
    assert found.plan.label == "mix" and is_checked(each, found)
    assert each.clock.ended == "budget" and each.bench.clock.deadline.remaining_s > 1e6


def test_a_budget_that_is_over_at_once_gives_the_first_module(caplog: pytest.LogCaptureFixture) -> None:
    each = made(budget_s=1e-9)
    found = each.compiled()
    assert found.plan.label == ENGINE and each.clock.ended == "budget"
    assert "nothing is ready: the compile goes on until there is a module" in caplog.text
    after_ctrl_c = made()
    after_ctrl_c.clock.__init__(Budget(1e-3, None, interrupted=True))  # type: ignore[misc]
    assert after_ctrl_c.compiled().plan.label == ENGINE
    assert after_ctrl_c.clock.ended == "interrupt"
