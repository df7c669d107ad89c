"""The curve of time against error: its frontier, and a race of real modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import collage
from collage.bench.pareto import ParetoRace, curve, frontier, module_name
from collage.check.accuracy import Asked
from collage.check.metrics import Metric
from tests.helpers.backends.product_models import product_model


def point(us: float, error: float) -> dict[str, float]:
    return {"median_us": us, "error": error}


def test_the_frontier_has_what_no_other_beats_in_time_and_error() -> None:
    points = {
        "slow and exact": point(9.0, 1e-7),
        "fast": point(4.0, 1e-2),
        "as fast, less exact": point(4.0, 2e-2),
        "between": point(6.0, 1e-3),
        "beaten": point(7.0, 2e-3),
    }
    assert frontier(points) == ["fast", "between", "slow and exact"]


def test_errors_are_those_of_the_metric_on_the_given_inputs(tmp_path: Path) -> None:
    """Each contender runs on each input, and the first one is there again for the race."""
    model, file = tmp_path / "model.onnx", tmp_path / "module.collage"
    onnx.save(product_model([4, 64], 32), model)
    options = {"db": tmp_path / "db.sqlite", "backends": ["onnxruntime"], "threads": 1}
    collage.compile(model, progress=False, **options).save(file)
    samples = tuple({"x": np.full((4, 64), fill, np.float32)} for fill in (1.0, 2.0, 3.0))
    seen: list[float] = []

    def own(expected: Mapping[str, Any], outputs: Mapping[str, Any]) -> float:
        seen.append(float(np.abs(next(iter(expected.values()))).max()))
        return max(float(np.abs(e - outputs[name]).max()) for name, e in expected.items())

    asked = Asked(0.0, Metric("own", own), samples)
    found = curve(ParetoRace(model, {0.0: file}, threads=1, rounds=1, asked=asked), lambda _: None)
    assert len(seen) == 3 * len(found["points"])
    assert len(set(seen[:3])) == 3
    assert found["metric"] == "own" and found["inputs"] == "3 samples that were given"
    quantised = found["points"]["onnxruntime int8"]
    assert quantised["error"] == max(quantised["errors"]) > 0
    assert found["points"][module_name(0.0)]["error"] < 1e-4
