"""The selection of a quick compile, which runs one placement."""

from __future__ import annotations

import pytest

from collage.compiler.passes.place_once import PlaceOnce
from collage.compiler.passes.select_only import SelectOnly
from collage.compiler.passes.within import Within
from collage.compiler.plan import FLOAT32
from collage.compiler.state import Compilation
from collage.errors import NoPlacementError
from collage.measure.timing.effort import QUICK
from tests.helpers.compiler.null import WRONG, Made, NullBackend, each_node, notes, planned


def test_a_quick_compile_of_wrong_outputs_has_no_placement() -> None:
    made, start = planned()
    made.runs.findings = {"quick": WRONG}
    with pytest.raises(NoPlacementError, match="the outputs differ"):
        SelectOnly()(made.context, start)
    made.runs.dropped = {"quick": "crashed"}
    with pytest.raises(NoPlacementError, match="the placement fails as a whole: crashed"):
        SelectOnly()(made.context, start)


def in_two_precisions(reduced_us: float, error: float = 4e-3) -> tuple[Made, Compilation]:
    """A library whose kernels take 10 us in float32, placed quickly within a tolerance."""
    costs = {**each_node("lib", 10.0), **each_node("lib bf16", 4.0)}
    made = Made(costs, NullBackend("lib", team=True), tolerance=0.05, effort=QUICK)
    made.runs.error_of = lambda each: error if each.reduced else 1e-7
    found = Within(PlaceOnce(), sensitivities=False)(made.context, made.measured())
    made.runs.whole_us = {"quick": 4 * reduced_us, FLOAT32: 40.0}
    return made, found


def test_a_quick_compile_within_a_tolerance_runs_the_float32_placement_beside() -> None:
    made, start = in_two_precisions(4.0)
    assert [plan.label for plan in start.plans] == ["quick", FLOAT32]
    found = SelectOnly()(made.context, start)
    assert (found.result.label, found.result.error) == ("quick", 4e-3)
    assert {label: timing.median_us for label, timing in found.result.timings.items()} == {
        "quick": 16.0,
        FLOAT32: 40.0,
    }
    assert 0 < found.result.predicted_error <= 0.05
    made, start = in_two_precisions(10.0)
    found = SelectOnly()(made.context, start)
    assert (found.result.label, found.result.error) == (FLOAT32, 1e-7)


def test_a_quick_compile_keeps_float32_where_the_reduced_placement_is_beyond_or_wrong() -> None:
    made, start = in_two_precisions(4.0)
    made.runs.error_of = lambda each: 0.06 if each.reduced else 1e-7
    found = SelectOnly()(made.context, start)
    assert found.result.label == FLOAT32
    assert notes(found)[-1] == (
        "the placement has an error of 0.06 on 12 made-up inputs, above the tolerance of 0.05; not used"
    )
    made.runs.findings = {"quick": WRONG}
    assert SelectOnly()(made.context, start).result.label == FLOAT32
