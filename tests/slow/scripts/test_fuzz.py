"""Some changed module files and ONNX files: each runs or ends in one clean error, whatever the change."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from scripts.lib.case_pool import Outcome
from scripts.lib.fuzzing.child import ERROR, OK, Start
from scripts.lib.fuzzing.main import Changed, changed_models, changed_modules, run_cases

MODULES, MODELS = 60, 15


def run(start: Start, cases: list[Changed], folder: Path) -> set[str]:
    """The statuses of the cases, which must be clean."""
    found: list[tuple[Changed, Outcome]] = []
    run_cases(start, cases, folder, 1, 60.0, lambda *pair: found.append(pair))
    assert len(found) == len(cases)
    assert not [(case.what, outcome) for case, outcome in found if outcome.status not in (OK, ERROR)]
    return {outcome.status for _, outcome in found}


def test_changed_modules(tmp_path: Path) -> None:
    """The same number is the same file."""
    cases, again = ([*changed_modules(tmp_path, count, seed=1)] for count in (MODULES, 3))
    assert [each.what for each in again] == [each.what for each in cases[:3]]
    assert run(Start("module"), cases, tmp_path) == {OK, ERROR}


def test_what_the_modules_are_made_of_runs(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    list(changed_modules(good, 1))
    cases = [Changed(i, each.name, each.read_bytes(), ".collage") for i, each in enumerate(sorted(good.iterdir()))]
    assert len(cases) > 10
    assert run(Start("module"), cases, tmp_path) == {OK}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_changed_models(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ONNX's test cases, when they are made
        cases = list(changed_models(MODELS, seed=1))
    run(Start("model", ("onnxruntime", "tvm")), cases, tmp_path)
