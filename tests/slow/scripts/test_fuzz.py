"""Some changed module files and ONNX files: each runs or ends in one clean error, whatever the change."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from scripts.lib.fuzzing.cases import changed_models, changed_modules
from scripts.lib.fuzzing.child import Start
from scripts.lib.fuzzing.pool import Changed, Result, run_all

MODULES, MODELS = 60, 15


def run(start: Start, cases: list[Changed], folder: Path) -> list[Result]:
    results = run_all(start, cases, folder, 1, 60.0, lambda _: None)
    assert not [(each.changed.what, each.status, each.message) for each in results if not each.clean]
    return results


def test_changed_modules(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    cases = list(changed_modules(good, MODULES, seed=1))
    results = run(Start("module"), cases, tmp_path)
    assert {each.status for each in results} == {"ok", "clean error"}


def test_what_the_modules_are_made_of_runs(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    list(changed_modules(good, 1))
    cases = [
        Changed(i, each.name, each.read_bytes(), ".collage") for i, each in enumerate(sorted(good.iterdir()))
    ]
    assert len(cases) > 10
    assert {each.status for each in run(Start("module"), cases, tmp_path)} == {"ok"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_changed_models(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ONNX's test cases, when they are made
        cases = list(changed_models(MODELS, seed=1))
    run(Start("model", ("onnxruntime", "tvm")), cases, tmp_path)
