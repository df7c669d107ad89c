"""Concurrent plans alone, with made-up costs on one thread and on the team."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from collage.compiler.events import Considered
from collage.compiler.passes.concurrency import Concurrency
from collage.compiler.passes.place import Place
from collage.compiler.state import Compilation
from collage.patterns.match import Match
from tests.helpers.compiler.null import Costs, Made, NullBackend, NullMeasurer, fork

LIBRARY = NullBackend("lib", team=True)
ON_TEAM: Costs = {("lib", (0,)): 100.0, ("lib", (1,)): 100.0, ("lib", (2,)): 10.0}


def prepared(single_threaded_us: float, **options: Any) -> tuple[Made, Compilation]:
    """Two kernels that do not depend on each other, and take this long on one thread."""
    made = Made(ON_TEAM, LIBRARY, model=fork, **options)
    alone = {("lib", (node,)): single_threaded_us for node in range(3)}
    made.measurer.single = NullMeasurer(made.model, alone, made.context.backends)
    matches = tuple(Match((node,), "lib", "pattern") for node in range(3))
    start = Place()(made.context, made.measured())
    return made, replace(start, matches=matches)


def test_what_is_faster_concurrently_is_planned() -> None:
    made, start = prepared(110.0)
    found = Concurrency()(made.context, start)
    (plan,) = found.plans
    assert plan.streams is not None and plan.algorithm in ("list", "nimble", "opara")
    assert sum(stream > 0 for stream in plan.streams.schedule.streams) >= 1
    assert 100.0 < plan.placement.predicted_us < 150.0
    told = [event for event in found.log if isinstance(event, Considered)]
    assert [event.request.nodes for event in told] == [(0,), (1,)]  # (2,) waits for both
    assert all(event.single_threaded for event in told)


def test_a_plan_that_fails_as_a_whole_is_left_out() -> None:
    made, start = prepared(110.0)
    made.runs.dropped = {"concurrent": "crashed"}
    assert Concurrency()(made.context, start).plans == ()
