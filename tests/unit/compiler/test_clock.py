"""The clock of a compile: budgets, their shares, what is kept for the end, and what has ended it."""

from __future__ import annotations

import math

import pytest

from collage.compiler.clock import Budget, Clock, share_of
from collage.core.deadline import BudgetOverError, Deadline


def clock(seconds: float | None) -> tuple[Clock, list[float]]:
    """A clock with a time of its own."""
    now = [0.0]
    found = Clock(Budget.of(seconds))
    found.deadline = Deadline(lambda: now[0])
    found.keep(0.0)
    return found, now


def test_the_end_keeps_what_it_needs_and_no_more_than_a_share() -> None:
    found, now = clock(60.0)
    assert found.deadline.remaining_s == 56.0
    found.keep(9.0)
    assert found.deadline.remaining_s == 51.0
    found.keep(1.0)
    assert found.deadline.remaining_s == 51.0  # it is not given back
    found.keep(50.0)
    assert found.deadline.remaining_s == 42.0
    now[0] = 43.0
    with pytest.raises(BudgetOverError):
        found.deadline.check()
    assert clock(None)[0].deadline.remaining_s == math.inf


@pytest.mark.parametrize(
    ("budget", "at", "remaining"),
    [(60.0, 43.0, 17.0), (60.0, 59.0, 10.0), (60.0, 80.0, 10.0), (None, 80.0, 20.0)],
)
def test_after_a_stop_the_end_has_the_rest_and_some_seconds_at_least(
    budget: float | None, at: float, remaining: float
) -> None:
    found, now = clock(budget)
    now[0] = at
    found.stop("budget")
    assert found.ended == "budget"
    assert found.deadline.remaining_s == pytest.approx(remaining)
    found.without_limit()
    assert found.deadline.remaining_s == math.inf


def test_compiles_share_what_is_left() -> None:
    now = [0.0]
    since = Deadline(lambda: now[0])
    assert share_of(60.0, since, 2, interrupted=False) == Budget(30.0, 60.0)
    now[0] = 20.0
    last = share_of(60.0, since, 1, interrupted=False)
    assert last == Budget(40.0, 60.0)
    assert last.words == "40 s, its share of the budget of 60 s"
    now[0] = 90.0
    late = share_of(60.0, since, 1, interrupted=False)
    assert late is not None and late.seconds < 0.01
    assert share_of(None, since, 1, interrupted=False) is None
    assert Budget.of(5.0) == Budget(5.0, 5.0) and Budget(5.0, 5.0).words == "the budget of 5 s"


@pytest.mark.parametrize("budget_s", [60.0, None])
def test_after_ctrl_c_the_others_get_a_first_module(budget_s: float | None) -> None:
    share = share_of(budget_s, Deadline(), 2, interrupted=True)
    assert share is not None and share.interrupted
    assert (share.seconds < 0.01, share.whole_s) == (True, budget_s)
    found = Clock(share)
    found.stop("interrupt")
    assert found.deadline.remaining_s == pytest.approx(20.0, abs=1.0)
