"""Placing within a tolerance, with made-up costs and errors; sensitivities are those of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from collage.check.final_check import Finding
from collage.check.metrics import Metric
from collage.compiler.executable import Executable
from collage.compiler.propose.engines import engines, engines_reduced
from collage.compiler.propose.mixes import calibrated
from collage.compiler.propose.reduced import early_reduced, quick_reduced, reduced
from collage.kernel.options import DYNAMIC_INT8
from collage.measure.timing.effort import QUICK
from collage.report.report import ErrorReport
from tests.helpers.compiler.null import WRONG, Made, NullBackend, NullEngine, each_node

LIBRARY = NullBackend("lib", team=True)
ENGINE = "engine, as written"


def made(reduced_us: float = 4.0, **options: Any) -> Made:
    """A library whose kernels take 10 us in float32, measured and placed in it."""
    costs = {**each_node("lib", 10.0), **each_node("lib bf16", reduced_us)}
    return Made(costs, LIBRARY, **options).measured().run(calibrated)


def counted(executable: Executable) -> int:
    return sum(1 for region in executable.program.launches if region.precision)


def of_best(each: Made) -> int:
    """The number of kernels of reduced precision in the best placement."""
    return sum(1 for c in each.placed[0].placement.candidates if c.variant.precision)


def with_errors(each: Made, error_of: Callable[[int], float]) -> Made:
    """Each placement has an error by the number of its kernels of reduced precision."""
    each.runs.error_of = lambda executable: error_of(counted(executable)) if counted(executable) else 1e-7
    return each


def told(each: Made) -> ErrorReport:
    found = each.bench.known.tolerance
    assert found is not None
    return found


@pytest.mark.parametrize("search", [reduced, early_reduced, quick_reduced])
def test_reduced_kernels_are_placed_within_the_tolerance(search: Any) -> None:
    each = with_errors(made(tolerance=0.05), lambda count: 4e-3 * count**0.5).run(search)
    assert of_best(each) == 4
    assert [plan.reduced for plan in each.placed] == [True, False]
    assert [plan.placement.predicted_us for plan in each.placed] == [16.0, 40.0]
    found = told(each)
    assert (found.tolerance, found.metric, found.samples, found.rounds) == (
        0.05,
        "max",
        "12 made-up inputs",
        1,
    )
    assert [plan.reduced for plan in each.best.finalists()] == [False, True]  # a list for each


def test_above_the_tolerance_the_estimate_is_corrected() -> None:
    each = with_errors(made(tolerance=1e-2), lambda count: 6e-3 * count).run(reduced)
    assert of_best(each) == 1
    assert told(each).rounds > 1
    errors = each.bench.known.errors
    assert errors is not None and errors.model.factors.of(("lib", "bf16")) > 1


def test_float32_remains_if_no_error_is_small_enough() -> None:
    each = with_errors(made(tolerance=1e-2), lambda _: 1.0).run(reduced)
    assert [plan.reduced for plan in each.placed] == [False]
    assert each.notes == ["no placement of reduced precision is within 0.01; float32 remains"]
    with_errors(made(tolerance=1e-2, effort=QUICK), lambda _: 1.0).compiled()


def test_float32_remains_if_nothing_else_is_offered_or_it_is_beyond_itself() -> None:
    each = Made(each_node("lib", 10.0), LIBRARY, tolerance=1e-2).measured().run(calibrated, reduced)
    (note,) = each.notes
    assert note.startswith("nothing runs in reduced precision here")
    assert made(tolerance=1e-8).run(reduced).notes == [
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
    each = made(tolerance=1e-2, metric=metric)
    outputs = [np.ones((4, 64), np.float32)]
    each.runs.error_of = lambda _: each.bench.accuracy.error(lambda _: outputs)
    each.run(reduced)
    assert of_best(each) == 0
    assert each.notes == [f"{why}; float32 remains"]
    assert not each.compiled().parts.program.launches[0].precision


def test_what_others_than_the_samples_would_take_beyond_the_tolerance_is_not_used() -> None:
    """An error of 0.04 on the samples, and of 0.08 that is foreseen of other inputs."""
    each = with_errors(made(tolerance=0.05), lambda count: 0.02 * count**0.5)
    each.runs.spread = 2.0
    each.run(reduced)
    assert of_best(each) == 1
    found = {}
    for spread in (1.0, 10.0):
        each = with_errors(made(tolerance=0.05), lambda count: 4e-3 * count**0.5)
        each.runs.spread = spread
        found[spread] = of_best(each.run(reduced))
    assert found == {1.0: 4, 10.0: 1}


def test_the_selection_has_its_errors() -> None:
    each = with_errors(made(tolerance=0.05), lambda _: 0.04)
    found = each.compiled()
    assert found.plan.label == "mix" and found.error == 0.04
    assert {region.precision for region in found.parts.program.launches} == {"bf16"}
    each = with_errors(made(tolerance=0.05), lambda _: 0.04)
    each.runs.finding_of = lambda executable: WRONG if executable.precisions else Finding(0.0, 0.0, "")
    found = each.compiled()
    assert found.error == 1e-7 and {region.precision for region in found.parts.program.launches} == {""}


@pytest.mark.parametrize("precision", ["bf16", DYNAMIC_INT8])
@pytest.mark.parametrize("tolerance", [10.0, 1e-9])
def test_an_engine_in_its_own_precision_is_a_rival_within_the_tolerance(tolerance: float, precision: str) -> None:
    """It is tried before anything is placed, and takes no search."""
    label = f"{ENGINE}, {precision}"
    us = {ENGINE: 30.0, label: 10.0}
    each = Made(
        each_node("lib", 10.0),
        LIBRARY,
        NullEngine("engine", precision=precision),
        engines=us,
        tolerance=tolerance,
    )
    each.run(engines, engines_reduced)
    within = tolerance > 1
    assert each.best.plan is not None and each.best.plan.label == (label if within else ENGINE)
    assert (label in each.engines.turns) == within
    found = each.compiled()
    assert found.plan.label == (label if within else ENGINE)
    suffix = found.parts.program.suffix
    assert suffix is not None and suffix.region.precision == (precision if within else "")
    none = Made({}, NullEngine("engine", precision=precision), engines=us).run(engines, engines_reduced)
    assert none.best.plan is not None and none.best.plan.label == ENGINE


def test_what_the_last_check_would_refuse_is_found_out_at_once() -> None:
    """Kernels in 8 bits whose range a large number decides; the placement in bfloat16 is left."""
    costs = {**each_node("lib", 10.0), **each_node("lib bf16", 6.0), **each_node("lib int8", 4.0)}
    found = []
    for refused in (True, False):
        each = with_errors(Made(costs, LIBRARY, tolerance=0.05).measured().run(calibrated), lambda _: 1e-3)
        wrong = WRONG if refused else Finding(0.0, 0.0, "")
        each.runs.finding_of = lambda e, wrong=wrong: wrong if "int8" in e.precisions else Finding(0.0, 0.0, "")  # type: ignore[misc]
        found.append({region.precision for region in each.compiled().parts.program.launches})
    assert found == [{"bf16"}, {"int8"}]
