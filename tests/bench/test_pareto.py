"""The curve of time against error: its frontier, and a race of real modules."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import collage
from collage.bench.pareto import Contest, curve, draw, frontier, module_name
from tests.models import conv_net


def point(us: float, error: float | None) -> dict[str, float | None]:
    return {"median_us": us, "error": error}


def test_the_frontier_has_what_no_other_beats_in_time_and_error() -> None:
    points = {
        "slow and exact": point(9.0, 1e-7),
        "fast": point(4.0, 1e-2),
        "as fast, less exact": point(4.0, 2e-2),
        "between": point(6.0, 1e-3),
        "beaten": point(7.0, 2e-3),
        "not compared": point(1.0, None),
    }
    assert frontier(points) == ["fast", "between", "slow and exact"]


def test_modules_run_against_engines(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model, file = tmp_path / "model.onnx", tmp_path / "module.collage"
    onnx.save(conv_net(), model)
    options = {"db": tmp_path / "db.sqlite", "backends": ["onnxruntime"], "threads": 1}
    collage.compile(model, progress=False, **options).save(file)
    found = curve(Contest(model, {0.0: file}, threads=1, rounds=2), lambda _: None)
    ours = found["points"][module_name(0.0)]
    assert ours["tolerance"] == 0.0
    assert ours["error"] < 1e-5
    assert {"onnxruntime"} <= found["points"].keys()
    assert set(found["frontier"]) <= found["points"].keys()
    draw(found, tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").stat().st_size > 1000
