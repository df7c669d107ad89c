"""Recurrent operators over one step: written out, they compute what ONNX Runtime computes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.frontend.rewrite.recurrent import RECURRENT, steps_spelt_out
from collage.frontend.session import reference_run
from tests.helpers.models import make_model

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ELEMENTS, HIDDEN, BATCH = 5, 8, 3


def recurrent(
    op: str,
    *,
    steps: int = 1,
    direction: str = "forward",
    bias: bool = True,
    state: str = "hc",
    outputs: Sequence[bool] = (True, True, True),
    extra: Mapping[str, object] = {},
    lengths: bool = False,
) -> onnx.ModelProto:
    """A model of one operator, followed by a relu of its first output."""
    count, gates, rng = 1 + (direction == "bidirectional"), GATES[op], np.random.default_rng(7)
    weights = {
        "w": rng.standard_normal((count, gates * HIDDEN, ELEMENTS)).astype(np.float32),
        "r": rng.standard_normal((count, gates * HIDDEN, HIDDEN)).astype(np.float32),
        "b": rng.standard_normal((count, 2 * gates * HIDDEN)).astype(np.float32),
    }
    if lengths:
        weights["lengths"] = np.full(BATCH, steps, np.int32)
    given = {"x": [steps, BATCH, ELEMENTS]}
    reads = ["x", "w", "r", "b" if bias else "", "lengths" if lengths else ""]
    for name in "hc"[: 2 if op == "LSTM" else 1]:
        reads.append(name if name in state else "")
        if name in state:
            given[name] = [count, BATCH, HIDDEN]
    shapes = {"y": [steps, count, BATCH, HIDDEN], "yh": [count, BATCH, HIDDEN], "yc": [count, BATCH, HIDDEN]}
    names = [name if made else "" for name, made in zip(shapes, outputs, strict=True)]
    names = names[: 3 if op == "LSTM" else 2]
    while not names[-1]:
        names.pop()
    node = helper.make_node(op, reads, names, "cell", hidden_size=HIDDEN, direction=direction, **extra)
    if not bias:
        del weights["b"]
    return make_model([node], given, {name: shapes[name] for name in names if name}, weights)


def drawn(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        info.name: (2 * rng.standard_normal([d.dim_value for d in info.type.tensor_type.shape.dim])).astype(np.float32)
        for info in model.graph.input
    }


def same(model: onnx.ModelProto) -> None:
    written = steps_spelt_out(model)
    onnx.checker.check_model(written, full_check=True)
    assert not {node.op_type for node in written.graph.node} & RECURRENT.keys()
    for seed in range(3):
        feeds = drawn(model, seed)
        for wanted, found in zip(reference_run(model, feeds), reference_run(written, feeds), strict=True):
            assert np.shape(found) == np.shape(wanted)
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", RECURRENT)
def test_one_step_is_written_out(op: str, direction: str) -> None:
    for bias, state in itertools.product((True, False), ("hc", "h", "c", "")):
        same(recurrent(op, direction=direction, bias=bias, state=state))
        if op == "GRU":
            after = {"linear_before_reset": 1}
            same(recurrent(op, direction=direction, bias=bias, state=state, extra=after))
    if op == "LSTM":
        named = {"activations": RECURRENT[op] * (1 + (direction == "bidirectional"))}
        same(recurrent(op, direction=direction, outputs=(False, False, True), extra=named))


@pytest.mark.parametrize(
    "model",
    [
        recurrent("LSTM", steps=2),
        recurrent("LSTM", lengths=True),
        recurrent("LSTM", extra={"activations": ["Sigmoid", "Relu", "Tanh"]}),
        recurrent("GRU", extra={"clip": 0.5}),
        recurrent("LSTM", extra={"input_forget": 1}),
    ],
    ids=["steps", "lengths", "activations", "clip", "coupled"],
)
def test_others_stay(model: onnx.ModelProto) -> None:
    assert steps_spelt_out(model) is model
