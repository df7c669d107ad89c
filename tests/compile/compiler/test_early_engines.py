"""Engines in bfloat16 before anything is placed, with made-up costs and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collage.compiler.events import Considered
from collage.compiler.passes.baselines import Baselines
from collage.compiler.passes.early_engines import EarlyEngines
from collage.compiler.passes.select_only import SelectOnly
from collage.compiler.passes.settle import Settle
from collage.compiler.state import Compilation
from collage.errors import NoPlacementError
from collage.measure.timing.effort import QUICK
from tests.compile.compiler.test_settle import first_module
from tests.compile.compiler.test_within import SEARCH
from tests.helpers.compiler.null import WHOLE, Made, NullBackend, ReducedEngine, each_node, notes

BF16, FLOAT32 = "engine, as written, bf16", "engine, as written"


def made(bf16_us: float = 10.0, error: float = 4e-3, **options: Any) -> tuple[Made, Compilation]:
    """An engine that takes 30 us in float32; a library would take 40 us."""
    costs = {
        **each_node("lib", 10.0),
        ("engine as written", WHOLE): 30.0,
        ("engine as written bf16", WHOLE): bf16_us,
    }
    found = Made(
        costs, NullBackend("lib", team=True), ReducedEngine("engine"), **({"tolerance": 1e-2} | options)
    )
    found.measurer.original = found.start.source.original
    found.runs.error_of = lambda each: error if each.reduced else 1e-7
    found.runs.whole_us = {FLOAT32: 30.0, BF16: bf16_us}
    return found, replace(found.start, first=first_module(found.start.source.original, 30.0))


def test_it_is_handed_over_where_the_compile_is_stopped_before_anything_is_matched() -> None:
    each, start = made()
    early = EarlyEngines()(each.context, start)
    assert [plan.label for plan in early.early] == [BF16]
    (told,) = early.log
    assert isinstance(told, Considered)
    assert told.request == each.measurer.asked[-1]
    assert [(best.label, best.latency_ms) for best in each.context.course.best] == [(BF16, 0.01)]
    found = Settle()(each.context, early)
    assert (found.result.label, found.result.error) == (BF16, 4e-3)
    assert each.runs.raced[-1][0] == [FLOAT32, BF16]
    (region,) = found.result.parts.program.launches
    assert (region.original, region.precision) == (True, "bf16")


@pytest.mark.parametrize("options", [{"error": 0.02}, {"tolerance": 0.0}])
def test_beyond_the_tolerance_it_is_no_plan(options: dict[str, float]) -> None:
    each, start = made(**options)
    early = EarlyEngines()(each.context, start)
    assert (early.early, each.context.course.best) == ((), [])
    beyond = "engine, as written, bf16: an error of 0.02 on 12 made-up inputs, above the tolerance of 0.01; not used"
    assert notes(early) == ([beyond] if "error" in options else [])
    # Later passes do not say it again.
    placed = SEARCH(each.context, replace(each.measured(), log=early.log))
    assert notes(Baselines()(each.context, placed)) == notes(early)
    with pytest.raises(NoPlacementError, match="not known yet"):
        Settle()(each.context, early)


def test_one_that_fails_is_no_plan() -> None:
    each, start = made()
    each.runs.drops = lambda executable: executable.reduced
    assert EarlyEngines()(each.context, start).early == ()


def test_a_quick_compile_that_is_stopped_hands_it_over() -> None:
    each, start = made(effort=QUICK)
    found = Settle(select=SelectOnly())(each.context, EarlyEngines()(each.context, start))
    assert (found.result.label, found.result.error) == (BF16, 4e-3)
    each, start = made(bf16_us=30.0, effort=QUICK)
    with pytest.raises(NoPlacementError, match="not faster than the first"):
        Settle(select=SelectOnly())(each.context, EarlyEngines()(each.context, start))
