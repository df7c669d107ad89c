"""The study of modules within a tolerance: which engines count, and the errors on inputs that no compile has seen."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import collage
from scripts.lib.studies.precision import Subject, errors_on_draws, left_out, speedups
from tests.backends.product_models import product_model

POINTS = {
    "collage 0.01": {"median_us": 10.0, "error": 1e-3, "tolerance": 0.01},
    "collage float32": {"median_us": 20.0, "error": 1e-6, "tolerance": 0.0},
    "openvino": {"median_us": 15.0, "error": 1e-6},
    "openvino bf16": {"median_us": 8.0, "error": 5e-3},
    "onnxruntime int8": {"median_us": 5.0, "error": 5e-2},
}


@pytest.mark.parametrize(
    ("draws", "ratio"),
    [
        (None, 0.8),
        ({"collage": [1e-3, 2e-3], "openvino bf16": [5e-3, 9e-3]}, 0.8),
        ({"collage": [1e-3, 2e-3], "openvino bf16": [5e-3, 2e-2]}, 1.5),
        ({"collage": [1e-3, 3e-2], "openvino bf16": [5e-3, 2e-2]}, 0.8),
    ],
)
def test_engines_count_as_our_modules_do(draws: dict[str, list[float]] | None, ratio: float) -> None:
    """An engine that is within the tolerance in the race alone is no rival for a module that always is."""
    found = speedups(POINTS, 0.01, draws)
    counted = left_out(POINTS, 0.01, draws or {})
    assert counted == ({"openvino bf16": {"over_ours": 0.8, "beyond": 1}} if ratio > 1 else {})
    assert found == {"best_engine_over_ours": ratio, "float32_over_ours": 2.0}


def test_errors_on_draws_are_those_of_engines_too(tmp_path: Path) -> None:
    proto = product_model([4, 64], 32)
    onnx.save(proto, tmp_path / "model.onnx")
    collage.compile(tmp_path / "model.onnx", quick=True, threads=1).save(tmp_path / "model.collage")
    found = errors_on_draws(Subject(tmp_path / "model.onnx"), tmp_path / "model.collage", 3, 1)
    assert all(len(each) == 3 for each in found.values())
    assert max(found["collage"]) < 1e-5
    reduced = [each for name, each in found.items() if name != "collage"]
    assert all(0 < max(each) < 0.1 for each in reduced)
    assert {"collage", "onnxruntime int8"} <= {*found}
