"""An early placement in reduced precision, with made-up costs and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collage.compiler.events import Bounded
from collage.compiler.passes.early_placement import LABEL, EarlyPlacement
from collage.compiler.passes.glance import Glance
from collage.compiler.passes.measure import Measure
from collage.compiler.passes.settle import Settle
from collage.compiler.passes.within import Within
from collage.compiler.plan import Plan
from collage.compiler.state import Compilation, Context
from collage.errors import NoPlacementError
from tests.compile.compiler.test_settle import first_module
from tests.compile.compiler.test_within import SEARCH, counted
from tests.compiler.null import Made, NullBackend, each_node

EARLY = EarlyPlacement(Measure(few=True, slowest=1.0), Within(SEARCH, rounds=2))


def placed(error: float = 4e-3, **options: Any) -> tuple[Made, Compilation]:
    """A library that takes 10 us for each node, and 4 us in bfloat16, placed in float32.

    Only what is measured is known in bfloat16.
    """
    costs = {**each_node("lib", 10.0), **each_node("lib bf16", 4.0)}
    made = Made(costs, NullBackend("lib", team=True), **({"tolerance": 0.05, "budget_s": 60.0} | options))
    made.runs.error_of = lambda each: error * counted(each) ** 0.5
    measured = made.measured()
    known = {r: found for r, found in measured.outcomes.items() if not r.variant.precision}
    first = first_module(made.start.source.original, 70.0)
    start = replace(measured, outcomes=known, first=first)
    return made, SEARCH(made.context, start)


def test_a_stopped_compile_hands_over_what_was_placed_early() -> None:
    made, start = placed()
    found = EARLY(made.context, start)
    (plan,) = found.early
    assert (plan.label, plan.placement.predicted_us) == (LABEL, 16.0)
    assert [type(event) for event in found.log[len(start.log) :]] == [Bounded]
    # The mix is what it was, so that candidates in float32 race against such ones only.
    assert {r.variant.precision for r in found.outcomes.keys() - start.outcomes.keys()} == {"bf16"}
    assert found.errors is not None
    known = found.calibration.corrections.kernels
    assert {"", "bf16"} == {request.variant.precision for request in known}
    assert replace(found.calibration, corrections=start.calibration.corrections) == start.calibration
    unchanged = replace(found, early=(), errors=None, log=start.log, outcomes=start.outcomes)
    assert replace(unchanged, calibration=start.calibration) == start
    settled = Settle()(made.context, found)
    assert settled.result.label == LABEL
    assert {region.precision for region in settled.result.parts.program.launches} == {"bf16"}


@pytest.mark.parametrize(("error", "us"), [(4e-3, 11.0), (2e-2, 16.0)])
def test_launches_side_by_side_are_kept_where_they_are_faster_and_right_enough(
    error: float, us: float
) -> None:
    made, start = placed()
    error_of = made.runs.error_of
    made.runs.error_of = lambda each: error if each.label == "side by side" else error_of(each)

    def streams(context: Context, compilation: Compilation) -> Compilation:
        assert compilation.plans == ()
        faster = replace(compilation.placed.placement, predicted_us=11.0)
        return replace(compilation, plans=(Plan("side by side", faster, exclusive=False),))

    made.context = replace(made.context, options=replace(made.context.options, tolerance=1e-2))
    found = replace(EARLY, streams=streams)(made.context, start)
    (plan,) = found.early
    assert (plan.label, plan.placement.predicted_us) == (LABEL, us)


def test_nothing_is_kept_where_no_error_is_small_enough() -> None:
    made, start = placed(error=1.0)
    found = EARLY(made.context, start)
    assert (found.early, found.log) == ((), start.log)
    assert found.errors is not None and found.errors.model.factors.of(("lib", "bf16")) > 30


def test_the_next_search_begins_with_what_is_known_of_errors() -> None:
    made, start = placed(error=2.4e-2)
    found = EARLY(made.context, start)
    made.runs.ran.clear()
    within = Within(SEARCH)(made.context, found)
    (*_, told) = (event for event in within.log if isinstance(event, Bounded))
    assert told.rounds == 1
    assert within.errors == found.errors


def test_a_compile_without_a_tolerance_or_kernels_of_reduced_precision_spends_no_time_on_it() -> None:
    made, start = placed()
    start = replace(start, offers=tuple(each for each in start.offers if not each.request.variant.precision))
    made.runs.ran.clear()
    assert EARLY(made.context, start) is start
    assert made.runs.ran == []


def test_a_kernel_that_fails_in_the_early_plan_is_left_out() -> None:
    made, start = placed()
    found = EARLY(made.context, start)
    made.runs.worn_out = ("lib", (2,))
    with pytest.raises(
        NoPlacementError
    ):  # the only library fails on one node, so that the first module stays
        Settle()(made.context, found)


def test_the_model_is_not_placed_again_where_the_early_mix_is_faster_than_that_could_become() -> None:
    """What was compared when the user was last told is compared, so that nothing has to be run once more."""
    made, start = placed()
    found = EARLY(made.context, start)
    Glance()(made.context, found)
    (told,) = made.runs.raced
    settled = Settle()(made.context, found)
    assert made.runs.raced[1:] == [told]
    assert LABEL in told[0]
    assert settled.result.label == LABEL
    assert settled.proposal is found.proposal
