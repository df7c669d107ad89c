"""Calibration alone, with made-up times in the network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.compiler.passes.calibrate import Calibrate
from collage.compiler.passes.place import Place
from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from tests.compiler.null import two_libraries


def test_a_run_corrects_costs() -> None:
    made = two_libraries()
    placed = Place()(made.context, made.measured())
    found = Calibrate()(made.context, placed)
    assert found.placed.mix is not None
    assert found.placed.mix.predicted_us == 80.0
    assert [
        us
        for _, us in sorted((r.nodes, timed.us) for r, timed in found.calibration.corrections.kernels.items())
    ] == [20.0] * 4
    assert [plan.label for plan in found.plans] == ["collage"]
    assert placed.calibration.rounds == ()


def test_a_mix_that_was_seen_is_settled() -> None:
    made = two_libraries()
    placed = Place()(made.context, made.measured())
    once = Calibrate()(made.context, placed)
    again = Calibrate()(made.context, replace(once, proposal=placed.proposal))
    assert (once.calibration.converged, again.calibration.converged) == (False, True)
    assert made.runs.ran == ["mix"]
    assert again.placed == once.placed


def test_a_first_mix_that_fails_is_told_by_an_error() -> None:
    made = two_libraries()
    made.runs.dropped["mix"] = "crashed"
    placed = Place()(made.context, made.measured())
    with pytest.raises(PlanDroppedError):
        Calibrate()(made.context, placed)
    made = two_libraries()
    made.runs.worn_out = ("one", (1,))
    with pytest.raises(KernelRejectedError):
        Calibrate()(made.context, placed)
