"""The selection alone, with made-up times of whole plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.compiler.passes.select import Select
from collage.compiler.plan_failures import KernelRejectedError
from collage.errors import NoPlacementError
from tests.helpers.compiler.null import WRONG, notes, planned


def test_the_fastest_is_selected_with_its_figures() -> None:
    made, start = planned()
    found = Select()(made.context, start).result
    assert (found.label, found.measured_us, found.predicted_us) == ("collage", 40.0, 40.0)
    assert sorted(found.timings) == ["collage", "engine"]
    assert (found.max_abs_error, found.relative_error) == (0.25, 0.125)
    assert [each.label for each in made.runs.loaded] == ["collage"]


def test_an_engine_that_is_faster_when_run_is_selected() -> None:
    made, start = planned()
    made.runs.whole_us = {"collage": 60.0, "engine": 30.0}
    found = Select()(made.context, start)
    assert found.result.label == "engine"
    assert {r.backend for r in found.result.parts.program.launches} == {"engine"}


def test_wrong_outputs_cost_the_selection() -> None:
    made, start = planned()
    made.runs.findings = {"collage": WRONG}
    found = Select()(made.context, start)
    assert found.result.label == "engine"
    assert notes(found) == ["collage: outputs differ; not used"]
    made.runs.findings["engine"] = WRONG
    with pytest.raises(NoPlacementError, match=r"collage: outputs differ; not used; engine: outputs differ"):
        Select()(made.context, start)


def test_a_plan_that_errs_on_unusual_inputs_only_is_guarded() -> None:
    made, start = planned()
    made.runs.findings = {"collage": replace(WRONG, ordinary=False)}
    found = Select()(made.context, start)
    assert found.result.label == "collage"
    assert found.result.parts.program.is_guarded
    assert not notes(found)


def test_a_plan_that_was_dropped_does_not_run() -> None:
    made, start = planned()
    made.runs.dropped = {"collage": "crashed: SIGSEGV"}
    found = Select()(made.context, start)
    assert found.result.label == "engine"
    assert notes(found) == ["collage: fails as a whole: crashed: SIGSEGV; not used"]
    assert made.runs.raced[0][0] == ["engine"]


def test_a_rejected_kernel_is_told_by_an_error() -> None:
    made, start = planned()
    made.runs.worn_out = ("lib", (2,))
    with pytest.raises(KernelRejectedError, match="crashed: in the network: SIGSEGV"):
        Select()(made.context, start)
