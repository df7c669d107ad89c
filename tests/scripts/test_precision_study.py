"""The study of modules within a tolerance: which engines count."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scripts.lib.studies.precision import left_out, speedups, undisturbed_rounds

OURS = {"rounds_us": [10.0, 20.0, 40.0], "tolerance": 0.01}
OWN = {"rounds_us": [20.0, 40.0, 50.0], "errors": [1e-6, 1e-6], "tolerance": 0.0}
OPENVINO = {"rounds_us": [15.0, 30.0, 90.0], "errors": [1e-6, 2e-6, 1e-6]}
IN_8_BITS = {"rounds_us": [5.0, 10.0, 20.0], "errors": [5e-2, 8e-2, 4e-2]}


@pytest.mark.parametrize(
    ("ours", "bfloat16", "counts"),
    [
        ([1e-3, 2e-3, 1e-3], [5e-3, 9e-3, 5e-3], True),
        ([1e-3, 2e-3, 1e-3], [5e-3, 2e-2, 5e-3], False),
        ([1e-3, 3e-2, 1e-3], [5e-3, 2e-2, 5e-3], True),
    ],
)
def test_engines_count_as_our_modules_do(
    ours: Sequence[float], bfloat16: Sequence[float], counts: bool
) -> None:
    """An engine that is within the tolerance on some inputs is no rival for a module that always is."""
    points = {
        "collage 0.01": {**OURS, "errors": ours},
        "collage float32": OWN,
        "openvino": OPENVINO,
        "openvino bf16": {"rounds_us": [8.0, 14.0, 34.0], "errors": bfloat16},
        "onnxruntime int8": IN_8_BITS,
    }
    counted = left_out(points, 0.01)
    assert counted == ({} if counts else {"openvino bf16": {"over_ours": 0.8, "beyond": 1}})
    assert speedups(points, 0.01) == {
        "best_engine_over_ours": 0.8 if counts else 1.5,
        "float32_over_ours": 2.0,
    }


def test_rounds_in_which_a_core_was_taken_away_do_not_count() -> None:
    ours, engine = [6.0, 11.5, 6.2, 6.1, 11.6, 5.9], [6.8, 10.7, 6.9, 10.8, 10.6, 6.7]
    assert undisturbed_rounds(ours, engine) == [0, 2, 5]
    assert undisturbed_rounds(ours) == [0, 2, 3, 5]
    assert undisturbed_rounds([1.0, 1.0, 2.0, 2.0, 2.0], [2.0, 2.0, 1.0, 1.0, 2.0]) == [0, 1, 2, 3, 4]
    points = {
        "collage 0.01": {"rounds_us": ours, "errors": [0.0]},
        "engine": {"rounds_us": engine, "errors": [0.0]},
    }
    points["collage 0.01"]["tolerance"] = 0.01
    assert speedups(points, 0.01)["best_engine_over_ours"] == pytest.approx(6.8 / 6.0, abs=1e-4)
