"""Sensitivities of networks whose answer is known, by ONNX Runtime with noise."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from collage.check.compare import relative_error
from collage.check.sensitivity import sensitivities
from collage.frontend.model import import_model
from tests.helpers.models import make_model


def compare(outputs: list[np.ndarray], expected: list[np.ndarray]) -> float:
    return max(relative_error(a, e) for a, e in zip(outputs, expected, strict=True))


def test_what_is_added_to_something_large_matters_less() -> None:
    # y = tanh(x) + 9 sin(x) hides an error in the first term, and not one in the second.
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], "tanh"),
        helper.make_node("Sin", ["x"], ["s"], "sin"),
        helper.make_node("Mul", ["s", "nine"], ["m"], "mul"),
        helper.make_node("Add", ["t", "m"], ["y"], "add"),
    ]
    weights = {"nine": np.array(9.0, np.float32)}
    model = import_model(make_model(nodes, {"x": [8, 512]}, {"y": [8, 512]}, weights))
    values = {name: model.onnx_values[name] for name in ("t", "m", "y")}
    sample = [np.random.default_rng(0).standard_normal((8, 512)).astype(np.float32)]
    found = sensitivities(model, list(values.values()), [sample], compare)
    assert found[values["y"]] == pytest.approx(1.0, rel=1e-3)
    assert found[values["m"]] == pytest.approx(0.9, rel=0.1)
    assert 0.05 < found[values["t"]] < 0.2


def test_a_value_inside_a_node_has_the_sensitivity_of_what_the_node_makes() -> None:
    node = helper.make_node("Gelu", ["x"], ["y"], "gelu")
    model = import_model(make_model([node], {"x": [4, 64]}, {"y": [4, 64]}, opset=20))
    inner = [v for n in model.graph.nodes for v in n.outputs]
    sample = [np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)]
    found = sensitivities(model, inner, [sample], compare)
    assert set(found) == set(inner)
    assert all(share == pytest.approx(1.0, rel=1e-3) for share in found.values())


def test_rounding_counts_where_the_outputs_depend_on_the_largest_numbers() -> None:
    """Two scores that are far above all others: what they are rounded by makes the probabilities."""
    nodes = [
        helper.make_node("Sin", ["x"], ["s"], "sin"),
        helper.make_node("Mul", ["s", "w"], ["z"], "scores"),
        helper.make_node("Softmax", ["z"], ["y"], "softmax"),
    ]
    weights = {"w": np.concatenate([[40.0, 40.0], np.full(998, 4.0)]).astype(np.float32)}
    model = import_model(make_model(nodes, {"x": [1, 1000]}, {"y": [1, 1000]}, weights))
    value = model.onnx_values["z"]
    sample = [np.full((1, 1000), 1.5, np.float32)]
    (found,) = {sensitivities(model, [value], [sample] * count, compare)[value] for count in (1, 2, 4)}
    # The difference of both scores is off by up to 0.008 of 40, and p (1 - p) = 1/4.
    assert 8 < found < 20
