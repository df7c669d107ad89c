"""What is no number is an error of a script's checks, whichever output it is in."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import collage
from scripts.lib.check_models import Case, check
from scripts.lib.errors import largest, scaled_error
from scripts.lib.gpu.contenders import largest_error
from scripts.lib.studies.precision import left_out
from scripts.lib.studies.tables import precision_lines

ONE, WRONG = np.ones(3, np.float32), np.array([1, math.nan, 1], np.float32)


def test_the_largest_error_loses_no_nan() -> None:
    assert largest([]) == 0.0
    assert largest([1e-7, 1e-3, 0.0]) == 1e-3
    for errors in ([math.nan, 0.1], [0.1, math.nan], [0.1, math.inf]):
        assert largest(errors) == math.inf


def test_errors_are_shares_of_the_largest_magnitude() -> None:
    assert scaled_error([1.0, -4.0], [1.0, -2.0]) == 1.0
    assert scaled_error([1e-3], [0.0]) == 1e-3
    assert scaled_error(np.zeros((0, 2)), np.zeros((0, 2))) == 0.0
    assert scaled_error(ONE, np.ones((3, 1))) == math.inf


def test_what_is_not_finite_must_be_the_same_at_the_same_place() -> None:
    odd = np.array([math.nan, math.inf, -math.inf, 2.0])
    assert scaled_error(odd, odd) == 0.0
    assert scaled_error(odd * [1, 1, 1, 1.5], odd) == 0.5
    for place in range(4):
        for value in (math.nan, math.inf, 0.0):
            other = odd.copy()
            other[place] = value
            if not np.array_equal(odd, other, equal_nan=True):
                assert scaled_error(other, odd) > 0.9


@pytest.mark.parametrize("outputs", [[WRONG, ONE], [ONE, WRONG]], ids=["first", "second"])
def test_a_nan_in_any_output_of_a_network_on_a_gpu_is_found(outputs: list[Any]) -> None:
    assert largest_error([ONE, ONE], [ONE, ONE]) == 0.0
    assert largest_error(outputs, [ONE, ONE]) == math.inf


@pytest.mark.parametrize(("found", "right"), [(ONE, True), (WRONG, False), (WRONG * math.nan, False)])
def test_a_model_that_gives_no_numbers_is_not_ok(
    found: Any, right: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = SimpleNamespace(
        measurements_made=0, compile_s=0.0, search_s=0.0, measured_us=1.0, predicted_us=1.0
    )
    program = SimpleNamespace(launches=[])
    module = SimpleNamespace(run=lambda _: {"y": found, "z": ONE}, report=report, program=program)
    monkeypatch.setattr(collage, "compile", lambda *_, **__: module)
    assert check(Case(Path("m.onnx"), [({}, [ONE, ONE])]), None, None) is right
    assert capsys.readouterr().out.startswith("ok " if right else "FAIL")


def test_inputs_on_which_a_module_gives_no_numbers_are_beyond_the_tolerance() -> None:
    ours = {"tolerance": 0.1, "errors": [0.0, 0.0, 0.0], "rounds_us": [1.0]}
    engine = {"errors": [0.0, 0.0, math.nan], "rounds_us": [0.5]}
    assert left_out({"collage 0.1": ours, "swift": engine}, 0.1)["swift"]["beyond"] == 1
    result = {
        "model": "m",
        "speedup": {"best_engine_over_ours": None, "float32_over_ours": None},
        **{"undisturbed": 1, "rounds": 1, "reduced": 0, "launches": 1, "real": False, "failed": {}},
        **{"tolerance": 0.1, "draws": [0.0, math.nan]},
    }
    assert "1 of 2 other inputs beyond 0.1 (largest inf)" in precision_lines(result)[0]
