"""Shares of a budget: what several compiles have of it, and what their user is told."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace

import pytest

from collage.compiler.passes.anytime import Anytime
from collage.compiler.passes.settle import Settle
from collage.compiler.shape_sets import share_of
from collage.compiler.share import LEAST_S, Share, was_interrupted, whole_s
from collage.core.deadline import Deadline
from tests.compile.compiler.test_anytime import Hand, handed_over, with_budget
from tests.compile.compiler.test_settle import made

__all__ = ["handed_over"]  # a fixture


def test_compiles_share_what_is_left() -> None:
    now = [0.0]
    course = Deadline(lambda: now[0])
    assert share_of(60.0, course, 2, interrupted=False) == 30.0
    now[0] = 20.0
    last = share_of(60.0, course, 1, interrupted=False)
    assert (last, whole_s(last), was_interrupted(last)) == (40.0, 60.0, False)
    now[0] = 90.0
    assert share_of(60.0, course, 1, interrupted=False) == LEAST_S
    assert share_of(None, course, 1, interrupted=False) is None


@pytest.mark.parametrize(("budget_s", "told"), [(60.0, 60.0), (None, None), (math.inf, None)])
def test_after_ctrl_c_there_is_time_for_a_first_module(budget_s: float | None, told: float | None) -> None:
    share = share_of(budget_s, Deadline(), 2, interrupted=True)
    assert (share, whole_s(share), was_interrupted(share)) == (LEAST_S, told, True)
    assert json.dumps(share) == "0.001"


@pytest.mark.parametrize(
    ("share", "ended", "text"),
    [
        (Share(0.51234, 60.0), "budget", "more than 0.512 s, its share of the budget of 60 s"),
        (Share(0.0, 60.0), "budget", ""),
        (Share(0.0, 60.0, interrupted=True), "interrupt", ""),
    ],
)
def test_what_has_ended_a_compile_with_a_share(
    share: Share, ended: str, text: str, caplog: pytest.LogCaptureFixture, handed_over: list[str]
) -> None:
    each, start = made()
    each = with_budget(each, share)
    deadline = each.context.course.deadline
    deadline._began -= 5.0
    with caplog.at_level(logging.WARNING):
        found = Anytime((Hand(start),), Settle())(each.context, replace(start, offers=()))
    assert found.result.label == "engine"
    assert each.context.course.ended == ended
    assert ("interrupted" in handed_over[0]) == (ended == "interrupt")
    assert text in caplog.text and bool(text) == ("the first module took" in caplog.text)
