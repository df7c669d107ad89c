"""The deadline of a piece of work, on a clock that the test moves."""

from __future__ import annotations

import math

import pytest

from collage.core.deadline import BudgetOverError, Deadline


def test_a_stage_ends_after_so_many_seconds_from_the_start_or_from_now() -> None:
    now = [100.0]
    deadline = Deadline(lambda: now[0])
    assert deadline.remaining_s == math.inf
    deadline.check()
    now[0] += 3
    deadline.end_after(5)
    assert (deadline.elapsed_s, deadline.remaining_s) == (3, 2)
    now[0] += 2
    assert deadline.over
    with pytest.raises(BudgetOverError):
        deadline.check()
    deadline.allow(4)
    assert deadline.remaining_s == 4
    deadline.end_after(math.inf)
    assert not deadline.over


def test_it_is_not_taken_for_a_failure() -> None:
    assert not issubclass(BudgetOverError, Exception)
