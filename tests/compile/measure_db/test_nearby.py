"""How exact a result can be, where numbers are rounded to few bits: inputs, and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from ml_dtypes import bfloat16
from onnx import TensorProto, helper, numpy_helper

from collage.check.compare import is_tolerable
from collage.check.sample import nearby_outputs
from collage.frontend.session import PartSession
from collage.graph.dataflow import Array
from collage.graph.storage import INT8

ALLOWED = 0.05


def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Any]:
    return PartSession(model).run(feeds, 60.0)


def cancelling() -> tuple[onnx.ModelProto, dict[str, Array], Array]:
    """relu(sign(x) w + b) whose sums cancel, and the same with rounded weights. Rounding the inputs changes nothing.

    Outputs of about 0.01 are what is left of terms that add up to 9.
    """
    rng = np.random.default_rng(3)
    x = rng.choice([-1.5, 1.5], (1, 176)).astype(np.float32)
    w = rng.uniform(-0.1, 0.1, (176, 64)).astype(np.float32)
    b = (0.01 - np.sign(x) @ w)[0].astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Sign", ["x"], ["s"]),
            helper.make_node("MatMul", ["s", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["a"]),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 64))],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"x": x}, np.maximum(np.sign(x) @ w.astype(bfloat16).astype(np.float32) + b, 0)


@pytest.mark.parametrize("wrong", [False, True])
def test_weights_that_are_rounded_are_no_mistake(wrong: bool) -> None:
    model, feeds, made = cancelling()
    if wrong:
        made[0, 7] += 0.1
    (expected,) = run(model, feeds)
    assert np.abs(made - expected).max() > ALLOWED * np.abs(expected).max()
    nearby = [outputs[0] for outputs in nearby_outputs(model, feeds, run, "bf16")]
    about: dict[str, Any] = {"channels_first": False, "precision": "bf16"}
    assert is_tolerable(made, expected, ALLOWED, nearby, **about) != wrong


def test_without_a_reduced_precision_weights_stay_as_they_are() -> None:
    model, feeds, _ = cancelling()
    ran: list[onnx.ModelProto] = []

    def noted(each: onnx.ModelProto, given: Mapping[str, Array]) -> list[Any]:
        ran.append(each)
        return run(each, given)

    assert len(list(nearby_outputs(model, feeds, noted))) == len(ran)
    assert all(each is model for each in ran)


@pytest.mark.parametrize("wrong", [False, True])
def test_small_numbers_beside_large_ones_lose_their_digits_in_8_bits(wrong: bool) -> None:
    """Steps are even: a channel that reads the small ones is off by half of its scale, and that is no mistake."""
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.standard_normal((1, 32)), 0.01 * rng.standard_normal((1, 32))], axis=1)
    w = np.zeros((64, 16), np.float32)
    w[:32, :15] = rng.uniform(-1, 1, (32, 15))
    w[32:, 15] = rng.uniform(-1, 1, 32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (9, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (9, 16))],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rows = (np.repeat(x, 9, axis=0) * rng.uniform(0.9, 1.1, (9, 64))).astype(np.float32)
    step = np.abs(rows).max() / 127
    made = (np.rint(rows / step) * step).astype(np.float32) @ w
    if wrong:
        made[4, 3] += 0.3 * np.abs(made[:, 3]).max()
    feeds = {"x": rows}
    (expected,) = run(model, feeds)
    assert np.abs(made - expected)[:, 15].max() > 0.2 * np.abs(expected[:, 15]).max()
    nearby = [outputs[0] for outputs in nearby_outputs(model, feeds, run, INT8, steps=True)]
    about: dict[str, Any] = {"channels_first": True, "precision": INT8}
    assert is_tolerable(made, expected, ALLOWED, nearby, **about) != wrong
