"""Placing within a tolerance, with made-up costs and errors; sensitivities are those of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from collage.compiler.events import Bounded
from collage.compiler.executable import Executable
from collage.compiler.final_check import Finding
from collage.compiler.metrics import Metric
from collage.compiler.passes.baselines import Baselines
from collage.compiler.passes.calibrate import Calibrate
from collage.compiler.passes.fixpoint import Fixpoint
from collage.compiler.passes.place import Place
from collage.compiler.passes.select import Select
from collage.compiler.passes.within import Within
from collage.compiler.plan import FLOAT32
from collage.compiler.state import Compilation
from collage.kernel.options import DYNAMIC_INT8
from tests.helpers.compiler.null import (
    WHOLE,
    WRONG,
    Made,
    NullBackend,
    ReducedEngine,
    chain,
    each_node,
    notes,
)

LIBRARY = NullBackend("lib", team=True)
RIGHT = Finding(0.0, 0.0, "")
SEARCH = Fixpoint(Place(), Calibrate())


def made_up(reduced_us: float = 4.0, **options: Any) -> Made:
    """A library whose kernels take 10 us in float32."""
    return Made({**each_node("lib", 10.0), **each_node("lib bf16", reduced_us)}, LIBRARY, **options)


def reduced(compilation: Compilation) -> int:
    """The number of kernels of reduced precision in the best placement."""
    return sum(1 for c in compilation.placed.placement.candidates if c.variant.precision)


def counted(executable: Executable) -> int:
    return sum(1 for region in executable.program.launches if region.precision)


def test_without_a_tolerance_nothing_is_of_reduced_precision() -> None:
    made = made_up()
    found = Within(SEARCH)(made.context, made.measured())
    alone = SEARCH(made.context, made.measured())
    assert (found.placed, found.plans) == (alone.placed, alone.plans)
    assert (reduced(found), found.budget) == (0, None)


def test_reduced_kernels_are_placed_beside_the_best_plan_in_float32() -> None:
    made = made_up(tolerance=0.05)
    made.runs.error_of = lambda each: 4e-3 * counted(each) ** 0.5
    found = Within(SEARCH)(made.context, made.measured())
    assert reduced(found) == 4
    assert [plan.label for plan in found.plans] == ["collage", FLOAT32]
    assert [plan.placement.predicted_us for plan in found.plans] == [16.0, 40.0]
    (told,) = (event for event in found.log if isinstance(event, Bounded))
    assert (told.tolerance, told.metric, told.about, told.rounds) == (0.05, "max", "12 made-up inputs", 1)


def test_where_the_error_is_above_the_tolerance_the_estimate_is_corrected() -> None:
    made = made_up(tolerance=1e-2)
    made.runs.error_of = lambda each: 6e-3 * counted(each)
    found = Within(SEARCH)(made.context, made.measured())
    assert reduced(found) == 1
    (told,) = (event for event in found.log if isinstance(event, Bounded))
    assert told.rounds > 1
    assert found.budget is not None
    assert found.budget.model.factors.of(("lib", "bf16")) > 1


def test_float32_remains_where_no_error_is_small_enough() -> None:
    made = made_up(tolerance=1e-2)
    made.runs.error_of = lambda each: 1.0 if counted(each) else 1e-7
    found = Within(SEARCH)(made.context, made.measured())
    assert (reduced(found), found.budget) == (0, None)
    assert notes(found) == ["no placement of reduced precision is within 0.01; float32 remains"]


def test_float32_remains_where_nothing_of_reduced_precision_is_offered() -> None:
    made = Made(each_node("lib", 10.0), LIBRARY, tolerance=1e-2)
    (note,) = notes(Within(SEARCH)(made.context, made.measured()))
    assert note.startswith("nothing runs in reduced precision here")


def test_a_tolerance_below_the_error_of_float32_is_told() -> None:
    made = made_up(tolerance=1e-8)
    found = Within(SEARCH)(made.context, made.measured())
    assert reduced(found) == 0
    assert notes(found) == [
        "a tolerance of 1e-08 is below float32's own error of 1e-07 on 12 made-up inputs; float32 remains"
    ]


def raises(reference: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> float:
    raise KeyError("boxes")


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        (Metric("raises", raises), "the metric raises raised KeyError: 'boxes'"),
        (Metric("nan", lambda *_: float("nan")), "the metric nan returned NaN"),
    ],
)
def test_a_metric_that_fails_leaves_float32(metric: Metric, why: str) -> None:
    made = made_up(tolerance=1e-2, metric=metric)
    outputs = [np.ones((4, 64), np.float32)]
    made.runs.error_of = lambda _: made.lab.bench.accuracy.error(lambda _: outputs)
    found = Within(SEARCH)(made.context, made.measured())
    assert reduced(found) == 0
    assert notes(found) == [f"{why}; float32 remains"]


def test_a_plan_beyond_the_tolerance_is_not_selected() -> None:
    made = made_up(tolerance=0.05)
    found = Within(SEARCH)(made.context, made.measured())
    made.runs.error_of = lambda each: 0.06 if counted(each) else 1e-7
    selected = Select()(made.context, found)
    assert selected.result.label == FLOAT32
    assert notes(selected)[-1] == (
        "collage: an error of 0.06 on 12 made-up inputs, above the tolerance of 0.05; not used"
    )
    made.runs.error_of = lambda each: 0.04 if counted(each) else 1e-7
    selected = Select()(made.context, found)
    assert (selected.result.label, selected.result.error) == ("collage", 0.04)
    assert 0 < selected.result.predicted_error < 0.05
    assert {r.precision for r in selected.result.parts.program.launches} == {"bf16"}


def test_a_plan_that_others_than_the_samples_would_take_beyond_the_tolerance_is_not_selected() -> None:
    made = made_up(tolerance=0.05)
    found = Within(SEARCH)(made.context, made.measured())
    made.runs.error_of = lambda each: 0.03 if counted(each) else 1e-7
    made.runs.spread = 2.0
    selected = Select()(made.context, found)
    assert selected.result.label == FLOAT32
    assert notes(selected)[-1] == (
        "collage: an error of 0.03 on 12 made-up inputs, and of 0.06 foreseen on other inputs, above the tolerance of "
        "0.05; not used"
    )


@pytest.mark.parametrize("precision", ["bf16", DYNAMIC_INT8])
@pytest.mark.parametrize("error", [1e-3, 0.1])
def test_an_engine_in_its_own_precision_is_a_rival_within_the_tolerance(error: float, precision: str) -> None:
    costs = {("engine as written", WHOLE): 30.0, (f"engine as written {precision}", WHOLE): 10.0}
    made = Made(
        {**each_node("lib", 10.0), **costs}, LIBRARY, ReducedEngine("engine", precision), tolerance=1e-2
    )
    made.measurer.original = chain()
    made.runs.error_of = lambda each: error if counted(each) else 1e-7
    start = Within(SEARCH)(made.context, made.measured())
    found = Select()(made.context, Baselines()(made.context, start))
    reduced_wins = error < 1e-2
    assert found.result.label == (
        f"engine, as written, {precision}" if reduced_wins else "engine, as written"
    )
    (region,) = found.result.parts.program.launches
    assert (region.original, region.precision) == (True, precision if reduced_wins else "")


def test_what_the_last_check_would_refuse_is_found_out_at_once() -> None:
    """Kernels in 8 bits whose range a large number decides; the placement in bfloat16 is left."""
    costs = {**each_node("lib", 10.0), **each_node("lib bf16", 6.0), **each_node("lib int8", 4.0)}
    made = Made(costs, LIBRARY, tolerance=0.05)
    made.runs.finding = lambda each, check, about="": WRONG if "int8" in each.precisions else RIGHT
    found = Within(SEARCH)(made.context, made.measured())
    assert {c.variant.precision for c in found.placed.placement.candidates} == {"bf16"}
    assert {each.request.variant.precision for each in found.offers} == {"", "bf16"}
    made.runs.finding = lambda each, check, about="": RIGHT
    found = Within(SEARCH)(made.context, made.measured())
    assert {c.variant.precision for c in found.placed.placement.candidates} == {"int8"}


def test_where_the_errors_of_samples_differ_much_room_is_left() -> None:
    """Half a tolerance on the samples, and five times as much foreseen of other inputs."""
    found = {}
    for spread in (1.0, 10.0):
        made = made_up(tolerance=0.05)
        made.runs.spread = spread
        made.runs.error_of = lambda each: 4e-3 * counted(each) ** 0.5
        found[spread] = reduced(Within(SEARCH)(made.context, made.measured()))
    assert found == {1.0: 4, 10.0: 1}  # an error of 0.04 foreseen, and with two of 0.057
