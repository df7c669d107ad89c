"""A compile that is stopped, with made-up costs: by its budget or by Ctrl-C, before and after there is a module."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from collage.compiler.passes import anytime
from collage.compiler.passes.anytime import Anytime
from collage.compiler.passes.settle import Settle
from collage.compiler.state import Compilation, Context, Pass
from collage.compiler.whole_model import WholeModel
from collage.core.deadline import BudgetOverError
from collage.errors import DatabaseError, MeasurementError, NoPlacementError
from collage.measure_db.database import Database
from tests.compile.compiler.test_settle import made
from tests.helpers.compiler.null import Made, whole_on_engine


@dataclass(frozen=True)
class Stop:
    """A pass that is stopped."""

    why: BaseException

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        raise self.why


@dataclass(frozen=True)
class Hand:
    """A pass that hands on a given state."""

    on: Compilation

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        return self.on


def stopped(why: BaseException, budget_s: float | None = 60.0, **changes: Any) -> tuple[Made, Compilation]:
    """A compile that is stopped after it has matched."""
    each, start = made()
    each = with_budget(each, budget_s)
    start = replace(start, **changes)
    begin = Compilation(start.source, first=start.first)
    return each, Anytime((Hand(start), Stop(why)), Settle())(each.context, begin)


def with_budget(each: Made, budget_s: float | None) -> Made:
    each.context = replace(each.context, options=replace(each.context.options, budget_s=budget_s))
    return each


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reasons why the first module was handed over, which is not loaded."""
    reasons: list[str] = []

    def chosen(context: Context, compilation: Compilation, whole: WholeModel) -> Compilation:
        reasons.append(whole.form.reason)
        return whole_on_engine(compilation.source.original)

    monkeypatch.setattr(anytime, "chosen", chosen)
    return reasons


@pytest.mark.parametrize(
    ("why", "ended"), [(BudgetOverError(), "budget"), (KeyboardInterrupt(), "interrupt")]
)
def test_what_is_known_is_handed_over(
    why: BaseException, ended: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        each, found = stopped(why)
    assert found.result.label == "collage"
    assert each.context.course.ended == ended
    assert ("interrupted; handing over" in caplog.text) == (ended == "interrupt")


@pytest.mark.parametrize("why", [BudgetOverError(), KeyboardInterrupt()])
def test_the_first_module_is_handed_over_where_nothing_else_is_known(
    why: BaseException, handed_over: list[str]
) -> None:
    each, found = stopped(why, offers=())
    assert found.result.label == "engine"
    assert handed_over == [anytime._REASONS[each.context.course.ended]]


def test_ctrl_c_before_the_first_module_ends_the_compile() -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped(KeyboardInterrupt(), first=None)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/inputs-1")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A database that takes no writes."""
    with Database(tmp_path / "db.sqlite") as database:
        database.run("PRAGMA query_only = 1")
        yield database


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (MeasurementError("the files cannot be written."), "the files cannot be written. Handing over"),
        (
            DatabaseError("the database is full."),
            "the database is full. Handing over the best module so far.",
        ),
        (FULL, "/tmp/inputs-1: No space left on device. Handing over the best module so far."),
    ],
)
def test_a_failure_of_the_system_loses_nothing(
    why: Exception, text: str, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    each, start = made()
    each.context = replace(each.context, database=database)
    begin = Compilation(start.source, first=start.first)
    found = Anytime((Hand(start), Stop(why)), Settle())(each.context, begin)
    assert found.result.label == "collage"
    assert each.context.course.ended == "failure"
    assert text in caplog.text


@pytest.mark.parametrize("why", [MeasurementError("no room."), DatabaseError("it is full."), FULL])
def test_a_failure_before_the_first_module_is_raised(why: Exception, database: Database) -> None:
    each, start = made()
    each.context = replace(each.context, database=database)
    with pytest.raises(type(why)):
        Anytime((Stop(why),), Settle())(each.context, replace(start, first=None))


def test_finishing_goes_on_without_writing(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    each, start = made()
    each = with_budget(each, 60.0)
    each.context = replace(each.context, database=database)
    tries: list[int] = []

    def finish(context: Context, compilation: Compilation) -> Compilation:
        tries.append(len(tries))
        context.database.put_fact("time", "of the mix", 1.0)
        return Settle()(context, compilation)

    found = Anytime((Hand(start), Stop(BudgetOverError())), finish)(each.context, start)
    assert (found.result.label, len(tries)) == ("collage", 2)
    assert "What is measured from now on is not kept." in caplog.text


@pytest.mark.parametrize("why", [FULL, DatabaseError("it is full.")])
def test_the_first_module_is_handed_over_where_finishing_fails(
    why: Exception, database: Database, handed_over: list[str]
) -> None:
    each, start = made()
    each = with_budget(each, 60.0)
    each.context = replace(each.context, database=database)
    found = Anytime((Hand(start), Stop(BudgetOverError())), Stop(why))(each.context, start)
    assert found.result.label == "engine"


def test_ctrl_c_again_ends_the_compile() -> None:
    each, start = made()
    passes: tuple[Pass, ...] = (Stop(KeyboardInterrupt("first")),)
    with pytest.raises(KeyboardInterrupt, match="second"):
        Anytime(passes, Stop(KeyboardInterrupt("second")))(each.context, start)


@pytest.fixture
def no_first_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine runs the whole model."""
    monkeypatch.setattr(anytime, "FirstModule", lambda: lambda context, compilation: compilation)


@dataclass(frozen=True)
class Slow(Hand):
    """A pass that hands on a given state where it has no limit, and is stopped where it has one."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        if context.course.deadline.remaining_s < 1e6:
            raise BudgetOverError
        return self.on


OVER, NOTHING = Stop(BudgetOverError()), Stop(NoPlacementError("nothing covers a node"))
DONE = whole_on_engine(made()[1].source.original)


@pytest.mark.usefixtures("no_first_module")
@pytest.mark.parametrize(
    ("improve", "finish", "least"),
    [
        pytest.param(OVER, Slow(DONE), (Stop(AssertionError()),), id="what is known is finished"),
        pytest.param(OVER, NOTHING, (Hand(DONE),), id="else few candidates are measured"),
        pytest.param(Slow(DONE), NOTHING, (NOTHING,), id="else all of them"),
        pytest.param(Slow(DONE), NOTHING, (), id="all of them"),
    ],
)
def test_without_a_module_the_budget_is_exceeded(
    improve: Pass, finish: Pass, least: tuple[Pass, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """No engine runs the model, so a placement has to be found, however long it takes."""
    each, start = made()
    each = with_budget(each, 60.0)
    with caplog.at_level(logging.WARNING):
        found = Anytime((improve,), finish, least)(each.context, replace(start, first=None))
    assert found.result.label == DONE.result.label
    assert "the compile goes on until there is a placement" in caplog.text


def test_a_budget_that_the_first_module_has_used_up_is_told(
    caplog: pytest.LogCaptureFixture, handed_over: list[str]
) -> None:
    each, start = made()
    each = with_budget(each, 1e-9)
    with caplog.at_level(logging.WARNING):
        found = Anytime((Hand(start),), Settle())(each.context, start)
    assert found.result.label == "engine"
    assert "more than the budget of 1e-09 s" in caplog.text
