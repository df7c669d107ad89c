"""What is known when a compile is stopped becomes a module, where it is faster than the first one."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest

from collage.compiler.passes.place import Place
from collage.compiler.passes.settle import SHORT, Settle
from collage.compiler.state import Compilation
from collage.compiler.whole_form import WholeForm
from collage.compiler.whole_model import WholeModel
from collage.core.deadline import BudgetOverError
from collage.errors import NoPlacementError
from collage.measure.whole_trial import EngineTrial
from collage.measure_db.results import Timing
from collage.search.errors import ErrorBudget
from tests.helpers.compiler.null import WHOLE, WRONG, Costs, Made, NullBackend, NullEngine, each_node

COSTS: Costs = {**each_node("lib", 10.0), **each_node("slow", 30.0), ("engine as written", WHOLE): 70.0}
ENGINE = "engine, as written"


def made(first_us: float = 70.0, raced: bool = True) -> tuple[Made, Compilation]:
    """Offers that were matched and not measured yet, and an engine on the whole model as the first module."""
    found = Made(COSTS, NullBackend("lib", team=True), NullBackend("slow", team=True), NullEngine("engine"))
    model = found.start.source.original
    if raced:
        found.measurer.original = model
    found.runs.whole_us[ENGINE] = first_us
    start = replace(found.measured(), outcomes={}, epsilon_us=0.0, first=first_module(model, first_us))
    return found, start


def first_module(model: onnx.ModelProto, us: float) -> WholeModel:
    trial = EngineTrial({"engine": Timing(us, 1.0, us, us, 20)}, {"engine": (0.0, 0.0)})
    return WholeModel(WholeForm(model, {}, "", 0), "engine", trial)


def test_what_is_known_is_placed_and_raced_against_the_first_module() -> None:
    each, start = made()
    found = Settle()(each.context, start)
    assert found.result.label == "collage"
    assert {region.backend for region in found.result.parts.program.launches} == {"lib"}
    assert each.measurer.asked == []
    assert each.runs.raced == [(["collage", ENGINE], SHORT)]
    assert [(b.label, b.latency_ms) for b in each.context.course.best] == [("collage", 0.04)]
    assert each.context.course.best_text == f"best so far 0.04 ms, 1.75x the best engine ({ENGINE})"


def test_without_a_cover_there_is_nothing() -> None:
    each, start = made()
    each.measurer.unknown = {("lib", (1,)), ("slow", (1,))}
    with pytest.raises(NoPlacementError):
        Settle()(each.context, start)
    with pytest.raises(NoPlacementError, match="not known yet"):
        Settle()(each.context, Compilation(start.source))


@pytest.mark.parametrize("raced", [True, False])
def test_the_first_module_stays_where_nothing_is_faster(raced: bool) -> None:
    each, start = made(first_us=40.0, raced=raced)
    with pytest.raises(NoPlacementError, match=r"nothing is faster than|not faster than the first"):
        Settle()(each.context, start)
    assert not each.context.course.best or not raced


def test_a_kernel_that_fails_in_the_network_is_placed_around() -> None:
    each, start = made(first_us=300.0)
    each.runs.worn_out = ("lib", (2,))
    found = Settle()(each.context, start)
    assert [r.backend for r in found.result.parts.program.launches] == ["lib", "lib", "slow", "lib"]


def test_wrong_outputs_are_not_handed_over() -> None:
    each, start = made()
    each.runs.findings = {"collage": WRONG}
    with pytest.raises(NoPlacementError):
        Settle()(each.context, start)


def test_it_ends_when_the_time_is_over() -> None:
    each, start = made()
    each.context.course.deadline.allow(0.0)
    with pytest.raises(BudgetOverError):
        Settle()(each.context, start)


def test_a_budget_whose_errors_were_not_measured_is_not_spent() -> None:
    costs = {**COSTS, **each_node("lib bf16", 4.0)}
    each = Made(costs, NullBackend("lib", team=True), NullBackend("slow", team=True), tolerance=0.05)
    start = replace(each.measured(), first=first_module(each.start.source.original, 70.0))
    reduced = Place()(each.context, replace(start, budget=ErrorBudget(0.05)))
    assert reduced.placed.placement.error > 0
    found = Settle()(each.context, reduced)
    assert {region.precision for region in found.result.parts.program.launches} == {""}
