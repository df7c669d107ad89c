"""The selection of a quick compile, which runs one placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from collage.compiler.executable import Executable
from collage.compiler.passes.gpu_streams import LABEL, GpuStreams
from collage.compiler.passes.place_once import PlaceOnce
from collage.compiler.passes.select_only import SelectOnly
from collage.compiler.passes.within import Within
from collage.compiler.plan import FLOAT32, SEQUENTIAL
from collage.compiler.plan_runs import Race
from collage.compiler.state import Compilation
from collage.errors import NoPlacementError
from collage.measure.timing.effort import QUICK
from collage.measure_db.keys import Raced
from tests.compile.compiler.test_gpu_streams import on_gpu
from tests.compiler.null import WRONG, Made, NullBackend, each_node, notes, planned


def test_a_quick_compile_selects_what_was_placed() -> None:
    made, start = planned()
    found = SelectOnly()(made.context, start)
    assert found.result.label == "quick"
    assert list(found.result.timings) == ["quick"]
    assert notes(found) == ["a quick compile: few candidates, few samples, no comparison of whole networks"]
    assert made.runs.raced == []


def test_a_quick_compile_of_wrong_outputs_has_no_placement() -> None:
    made, start = planned()
    made.runs.findings = {"quick": WRONG}
    with pytest.raises(NoPlacementError, match="the outputs differ"):
        SelectOnly()(made.context, start)
    made.runs.dropped = {"quick": "crashed"}
    with pytest.raises(NoPlacementError, match="the placement fails as a whole: crashed"):
        SelectOnly()(made.context, start)


@pytest.mark.parametrize(("streams_us", "wanted"), [(20.0, LABEL), (40.0, "quick")])
def test_a_quick_compile_for_a_gpu_runs_launches_on_several_streams_beside(
    streams_us: float, wanted: str
) -> None:
    made, start = on_gpu(effort=QUICK)
    start = GpuStreams()(made.context, PlaceOnce()(made.context, start))
    last = start.plans[-1].label
    made.runs.whole_us = {"quick": 30.0, last: streams_us}
    found = SelectOnly()(made.context, start)
    assert list(found.result.timings) == ["quick", last]
    assert found.result.label.startswith(wanted)
    assert (found.result.schedule == SEQUENTIAL) == (wanted == "quick")


def test_one_of_two_schedules_that_fails_leaves_the_other() -> None:
    """As on a GPU that has memory for one of them only: both were checked before."""
    made, start = on_gpu(effort=QUICK)
    start = GpuStreams()(made.context, PlaceOnce()(made.context, start))
    race, last = made.runs.race, start.plans[-1].label

    def fails(executables: Sequence[Executable], race_of: Race) -> Mapping[str, Raced]:
        made.runs.dropped = {last: "out of memory"}
        return race(executables, race_of)

    made.runs.race = fails  # type: ignore[method-assign]
    assert SelectOnly()(made.context, start).result.label == "quick"


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
