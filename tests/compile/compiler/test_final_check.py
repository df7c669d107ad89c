"""The last check of modules of reduced precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from collage.check.final_check import FinalCheck, Run
from collage.core.deadline import Deadline
from collage.frontend.model import import_model
from collage.frontend.session import reference_run
from collage.graph.storage import BF16
from collage.kernel.options import DYNAMIC_INT8
from tests.helpers.models import make_model

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


def test_by_another_metric_a_channel_that_is_next_to_zero_may_be_off() -> None:
    """A column of a hundredth of the others is wrong as a whole, which is little of all of the output."""
    weights = numpy_helper.to_array(MODEL.graph.initializer[0]) * np.array([1e-2, *[1.0] * 7], np.float32)
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [1, 16, 16]}, {"y": [1, 16, 8]}, {"w": weights}
    )
    check = FinalCheck.of(model, import_model(model), 0, Deadline())

    def run(inputs: Sequence[Any], factors: Any) -> tuple[list[Any], bool]:
        (y,) = reference_run(model, {"x": inputs[0]})
        return [(y * factors).astype(np.float32)], False

    small = partial(run, factors=np.array([2.0, *[1.0] * 7], np.float32))
    assert "output 0 by 1" in check.of_reduced([BF16]).look(small).complaint
    found = check.of_reduced([BF16], of_outputs=True).look(small)
    assert found.complaint == "" and found.relative == pytest.approx(1.0)
    all_of_it = check.of_reduced([BF16], of_outputs=True).look(partial(run, factors=np.float32(1.5)))
    assert all_of_it.complaint.startswith("outputs differ from ONNX Runtime's: output 0 by 0.5")


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


def test_positions_that_change_places_are_found_where_averages_hide_them() -> None:
    """Weights of columns are in the wrong order, and an average of magnitudes is taken."""
    branch = np.linspace(1, 1.002, 16, dtype=np.float32).reshape(1, 1, 1, 16)
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["y"]),
    ]
    model = make_model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 3, 1, 1]}, {"w": branch})
    check = FinalCheck.of(model, import_model(model), 0, Deadline())

    def run(inputs: Sequence[Any]) -> tuple[list[Any], bool]:
        y = (np.abs(inputs[0]) * branch[..., ::-1]).mean((2, 3), keepdims=True, dtype=np.float64)
        return [y.astype(np.float32)], False

    usual, *_, growing = check.samples
    assert replace(check, samples=(usual,)).look(run).complaint == ""
    assert "growing magnitudes" in replace(check, samples=(usual, growing)).look(run).complaint
