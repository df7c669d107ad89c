"""The key of a compile follows each option that decides what the compile finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collage.check.metrics import Metric
from collage.compiler.task import CompileOptions
from collage.measure.timing.effort import QUICK


@pytest.mark.parametrize(
    "change",
    [
        {"effort": QUICK},
        {"seed": 1},
        {"tune_trials": 8},
        {"time_limit_s": 1.0},
        {"streams": False},
        {"graph_level_s": 60.0},
        {"strict": True},
        {"exact": True},
        {"reassociate": False},
        {"tolerance": 1e-2},
        {"tolerance": 1e-3, "metric": Metric("cosine")},
        {"eight_bits": False},
        {"device": "cpu"},
    ],
)
def test_the_key_follows(change: dict[str, Any]) -> None:
    assert CompileOptions(**change).key != CompileOptions(tolerance=change.get("tolerance", 0.0) / 2).key


@pytest.mark.parametrize(
    "change", [{"threads": 1}, {"since": 1.0}, {"metric": Metric("cosine")}, {"backends": ("tvm",)}]
)
def test_the_key_is_the_same(change: dict[str, Any]) -> None:
    assert replace(CompileOptions(), **change).key == CompileOptions().key
