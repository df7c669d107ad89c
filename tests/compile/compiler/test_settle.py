"""What is known when a compile is stopped becomes a module, where it is faster than the first one."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest

from collage.compiler.events import Measured
from collage.compiler.passes.place import Place
from collage.compiler.passes.settle import SHORT, Settle
from collage.compiler.plan import FLOAT32, Plan
from collage.compiler.plan_failures import PlanDroppedError
from collage.compiler.short_list import short_list
from collage.compiler.state import Compilation
from collage.compiler.whole_form import WholeForm
from collage.compiler.whole_model import WholeModel
from collage.core.deadline import BudgetOverError
from collage.errors import NoPlacementError
from collage.measure.whole_trial import EngineTrial
from collage.measure_db.results import Timing
from collage.search.errors import ErrorBudget
from tests.compiler.null import WHOLE, WRONG, Costs, Made, NullBackend, NullEngine, each_node, planned

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


def test_what_is_not_known_is_left_out() -> None:
    each, start = made(first_us=300.0)
    each.measurer.unknown = {("lib", (1,)), ("lib", (2,))}
    found = Settle()(each.context, start)
    assert [r.backend for r in found.result.parts.program.launches] == ["lib", "slow", "slow", "lib"]


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


def test_a_module_that_is_selected_already_stays() -> None:
    each, start = made()
    selected = Settle()(each.context, start)
    assert Settle()(each.context, selected) is selected


def test_plans_that_were_found_are_raced_the_latest_ones_too() -> None:
    each, compilation = planned()
    plans = [replace(compilation.plans[0], label=f"plan {number}") for number in range(6)]
    Settle()(each.context, replace(compilation, plans=tuple(plans)))
    assert each.runs.raced[0][0] == ["plan 0", "plan 4", "plan 5"]


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


def test_failing_plans_come_to_an_end() -> None:
    each, start = made()
    tries = []

    def fail(*about: object) -> Compilation:
        tries.append(about)
        if len(tries) == 3:
            return start.told(Measured(1))
        raise PlanDroppedError("collage", "crashed")

    found = Settle(select=lambda context, known: replace(fail(), selected=selected(each, start)))
    assert found(each.context, start).selected is not None
    assert len(tries) == 3


def selected(each: Made, start: Compilation):  # type: ignore[no-untyped-def]
    return Settle()(each.context, start).result


def test_a_budget_whose_errors_were_not_measured_is_not_spent() -> None:
    costs = {**COSTS, **each_node("lib bf16", 4.0)}
    each = Made(costs, NullBackend("lib", team=True), NullBackend("slow", team=True), tolerance=0.05)
    start = replace(each.measured(), first=first_module(each.start.source.original, 70.0))
    reduced = Place()(each.context, replace(start, budget=ErrorBudget(0.05)))
    assert reduced.placed.placement.error > 0
    found = Settle()(each.context, reduced)
    assert {region.precision for region in found.result.parts.program.launches} == {""}


@pytest.mark.parametrize(("comparing_s", "again"), [(None, True), (1.0, False), (30.0, False)])
def test_a_placement_that_hardly_gains_is_not_compared(comparing_s: float | None, again: bool) -> None:
    """The plan that was compared is there already; the other one would have to be loaded and run first."""
    each, start = made()
    placed = Place()(each.context, replace(start, outcomes=each.measured().outcomes))
    before = replace(placed, plans=(Plan("side by side", placed.placed.placement, exclusive=False),))
    each.context.course.comparing_s = comparing_s
    each.context.course.deadline.allow(60.0)
    found = Settle()(each.context, before)
    assert (found.proposal is not before.proposal) == again


@pytest.mark.parametrize(("comparing_s", "again"), [(1.0, True), (30.0, False)])
def test_a_better_placement_is_compared_where_there_is_time(comparing_s: float, again: bool) -> None:
    each, start = made(first_us=300.0)
    each.measurer.unknown = {("lib", (1,)), ("lib", (2,))}
    placed = Settle()(each.context, start)
    plans = (Plan("mix", placed.placed.placement, exclusive=False),)
    each.measurer.unknown = set()
    each.context.course.comparing_s = comparing_s
    each.context.course.deadline.allow(60.0)
    found = Settle()(each.context, replace(placed, selected=None, plans=plans))
    assert [r.backend for r in found.result.parts.program.launches] == (
        ["lib"] * 4 if again else ["lib", "slow", "slow", "lib"]
    )


def test_the_placement_and_the_one_before_are_told_apart() -> None:
    """Each is timed: the times of the one are not taken for those of the other."""
    each, start = made(first_us=300.0)
    each.measurer.unknown = {("lib", (1,)), ("lib", (2,))}
    before = Settle()(each.context, start)
    each.measurer.unknown = set()
    plans = (Plan("collage", before.placed.placement, exclusive=False),)
    each.runs.raced.clear()
    found = Settle()(each.context, replace(before, selected=None, plans=plans))
    ((labels, _),) = each.runs.raced
    assert labels == ["collage", "earlier", ENGINE]
    assert [r.backend for r in found.result.parts.program.launches] == ["lib"] * 4
    assert (found.result.label, found.result.measured_us) == ("collage", 40.0)


def test_the_plan_in_float32_is_on_a_short_list() -> None:
    each, compilation = planned()
    plans = [replace(compilation.plans[0], label=label) for label in ("mix", FLOAT32, "a", "b", "c")]
    Settle()(each.context, replace(compilation, plans=tuple(plans)))
    assert each.runs.raced[0][0] == ["mix", FLOAT32, "c"]
    short = short_list(each.context, compilation, plans, 2)
    assert [plan.label for plan in short] == ["mix", "c"]


@pytest.mark.parametrize(("comparing_s", "compared"), [(None, True), (1.0, True), (30.0, False)])
def test_the_early_mix_that_was_told_of_is_taken_where_there_is_little_time(
    comparing_s: float | None, compared: bool
) -> None:
    """It was compared with the engine already. Another placement, as good as it may be, would have to be run first."""
    each, start = made(first_us=300.0)
    each.measurer.unknown = {("lib", (1,))}
    placed = Settle()(each.context, start)
    early = Plan("early mix", placed.placed.placement, exclusive=False)
    each.measurer.unknown = set()
    each.runs.raced.clear()
    each.context.course.best.clear()
    each.context.course.improved(early.label, 90.0, (ENGINE, 300.0))
    each.context.course.comparing_s = comparing_s
    each.context.course.deadline.allow(60.0)
    later = replace(placed, selected=None, proposal=None, plans=(), early=(early,))
    found = Settle()(each.context, later)
    assert found.result.label == ("collage" if compared else "early mix")
    ((labels, _),) = each.runs.raced
    assert labels == (["collage", ENGINE, "early mix"] if compared else ["early mix", ENGINE])
