"""The last check of modules of reduced precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper

from collage.compiler.final_check import FinalCheck, Run
from collage.core.deadline import Deadline
from collage.frontend.model import import_model
from collage.frontend.session import reference_run
from collage.graph.storage import BF16
from collage.kernel.options import DYNAMIC_INT8
from tests.models import make_model

MODEL = make_model(
    [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
    {"x": [4, 16]},
    {"y": [4, 8]},
    {"w": np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)},
)


def spoiled(factor: Callable[[Any], float]) -> Run:
    """The model, whose outputs are multiplied by what a function gives for the inputs' largest magnitude."""

    def run(inputs: Sequence[Any]) -> tuple[list[Any], bool]:
        (y,) = reference_run(MODEL, {"x": inputs[0]})
        return [(y * np.float32(factor(np.abs(inputs[0]).max()))).astype(np.float32)], False

    return run


def test_modules_in_bfloat16_may_be_far_off_on_outliers_only() -> None:
    check = FinalCheck.of(MODEL, import_model(MODEL), 0, Deadline())
    beside_outliers = spoiled(lambda largest: 2.0 if 1e3 < largest < 1e30 else 1.0)
    assert check.of_reduced([BF16]).look(beside_outliers).complaint == ""
    for strict in (check, check.of_reduced([DYNAMIC_INT8]), check.of_reduced([BF16, DYNAMIC_INT8])):
        assert "outliers" in strict.look(beside_outliers).complaint
    everywhere = check.of_reduced([BF16]).look(spoiled(lambda _: 1.5))
    assert everywhere.complaint.startswith("outputs differ from ONNX Runtime's: output 0 by 0.5")
    nan = check.of_reduced([BF16]).look(spoiled(lambda largest: np.nan if 1e3 < largest < 1e30 else 1.0))
    assert "outliers" in nan.complaint
