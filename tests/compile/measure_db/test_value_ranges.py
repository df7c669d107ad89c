"""Ranges of values on samples, against what numpy finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.check.value_ranges import value_ranges
from collage.frontend.model import Model, import_model
from collage.graph.ranges import Range
from tests.helpers.models import make_model

SHAPE = (1, 8, 64, 64)


def model_of(nodes: list[onnx.NodeProto], output: str) -> Model:
    return import_model(make_model(nodes, {"x": list(SHAPE)}, {output: list(SHAPE)}, {}))


def drawn(count: int = 3) -> list[tuple[Any, ...]]:
    return [(np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32),) for seed in range(count)]


def test_all_samples_count() -> None:
    model = model_of(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Mul", ["a", "x"], ["y"])], "y"
    )
    samples = drawn()
    found = value_ranges(model, samples)
    data = np.stack([each for (each,) in samples])
    ids = model.onnx_values
    assert found[ids["x"]] == Range(float(data.min()), float(data.max()))
    assert found[ids["a"]] == Range(0.0, float(data.max()))
    squares = np.maximum(data, 0) * data
    assert found[ids["y"]] == Range(float(squares.min()), float(squares.max()))


@pytest.mark.parametrize("by_largest", [True, False])
def test_the_range_with_the_smaller_error_is_taken(by_largest: bool) -> None:
    """A single number that is large in a channel of its own costs all others their digits, unless it is cut."""
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], "y")
    (one,), (other,) = drawn(2)
    one[0, 3, 4, 5] = 600.0
    found = value_ranges(model, [(one,), (other,)], by_largest=by_largest)[model.onnx_values["y"]]
    assert found.low == 0
    assert (found.high == 600.0) == by_largest
    assert found.high > 3
    assert found.limit == 1200.0  # twice what was seen, also where it is cut


def test_what_is_not_finite_has_no_range() -> None:
    model = model_of([helper.make_node("Log", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])], "y")
    found = value_ranges(model, drawn())
    assert model.onnx_values["x"] in found
    assert model.onnx_values["a"] not in found
