"""LSTM layers by our own kernel, against the equations of the ONNX standard in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.backends.native_kernels.lstm import OPERATOR, LstmLayer
from collage.core.typed import MalformedError
from collage.kernel.buffers import aligned_array
from collage.kernel.options import BuildOptions
from tests.helpers.backends.native_checks import BACKEND, needs_native, run_variant, subgraphs_of
from tests.helpers.models import make_model

pytestmark = needs_native
NAMES = ("y", "yh", "yc")

LAYER = LstmLayer()


def layer(
    *,
    steps: int = 5,
    batch: int = 1,
    elements: int = 7,
    hidden: int = 32,
    direction: str = "forward",
    bias: bool = True,
    state: str = "hc",
    outputs: Sequence[str] = NAMES,
    extra: dict[str, object] | None = None,
) -> onnx.ModelProto:
    count, rng = 1 + (direction == "bidirectional"), np.random.default_rng(11)
    weights = {
        "w": rng.standard_normal((count, 4 * hidden, elements)).astype(np.float32) / 2,
        "r": rng.standard_normal((count, 4 * hidden, hidden)).astype(np.float32) / 4,
        "b": rng.standard_normal((count, 8 * hidden)).astype(np.float32),
    }
    given = {"x": [steps, batch, elements], **{name: [count, batch, hidden] for name in state}}
    reads = ["x", "w", "r", "b" if bias else "", "", *(name if name in state else "" for name in "hc")]
    if not bias:
        del weights["b"]
    shapes = {"y": [steps, count, batch, hidden], "yh": [count, batch, hidden], "yc": [count, batch, hidden]}
    made = [name if name in outputs else "" for name in NAMES]
    node = helper.make_node("LSTM", reads, made, "cell", hidden_size=hidden, direction=direction, **(extra or {}))
    return make_model([node], given, {name: shapes[name] for name in outputs}, weights)


def computed(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The standard's equations, in float64."""

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-x)))

    (node,) = model.graph.node
    constants = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    values = {**constants, **{name: array.astype(np.float64) for name, array in feeds.items()}}
    x, w, r = (values[name] for name in node.input[:3])
    count, hidden = r.shape[0], r.shape[2]
    b = values.get("b", np.zeros((count, 8 * hidden)))
    zeros = np.zeros((count, x.shape[1], hidden))
    y, yh, yc = np.empty((len(x), *zeros.shape)), np.empty_like(zeros), np.empty_like(zeros)
    direction = next(a.s for a in node.attribute if a.name == "direction")
    for d in range(count):
        h, c = values.get("h", zeros)[d], values.get("c", zeros)[d]
        order = range(len(x))
        for t in reversed(order) if d or direction == b"reverse" else order:
            sums = x[t] @ w[d].T + h @ r[d].T + b[d, : 4 * hidden] + b[d, 4 * hidden :]
            i, o, f, g = np.split(sums, 4, 1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            y[t, d] = h
        yh[d], yc[d] = h, c
    return {"y": y, "yh": yh, "yc": yc}


def check(model: onnx.ModelProto, threads: int) -> set[str]:
    """All variants are right; returns their splits."""
    (subgraph,) = [each for each in subgraphs_of(model) if each.ops == (OPERATOR,)]
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in subgraph.input_types]
    names = [subgraph.model.input_names[subgraph.model.graph.inputs.index(v)] for v in subgraph.inputs]
    wanted = computed(model, dict(zip(names, inputs, strict=True)))
    splits = set()
    for variant in BACKEND.variants(subgraph, BuildOptions(threads=threads)):
        found = run_variant(subgraph, variant, threads, inputs)
        for name, mine in zip([info.name for info in model.graph.output], found, strict=True):
            np.testing.assert_allclose(mine, wanted[name], rtol=1e-5, atol=2e-6, err_msg=f"{variant} {name}")
        splits.add(variant.split)
    assert splits
    return splits


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("batch", [1, 3, 6])
def test_layers_of_all_directions(direction: str, batch: int) -> None:
    for steps, threads in ((2, 1), (5, 2), (9, 3)):
        check(layer(direction=direction, batch=batch, steps=steps, hidden=48), threads)


@pytest.mark.parametrize("state", ["hc", "h", "c", ""])
@pytest.mark.parametrize("bias", [True, False])
def test_states_and_biases_may_be_left_out(state: str, bias: bool) -> None:
    check(layer(state=state, bias=bias, direction="bidirectional", batch=2), 2)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_a_state_of_zeros_may_be_written_down(direction: str) -> None:
    model = layer(state="hc", direction=direction, batch=2)
    for name in "hc":
        info = next(each for each in model.graph.input if each.name == name)
        shape = [each.dim_value for each in info.type.tensor_type.shape.dim]
        model.graph.input.remove(info)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name))
    check(model, 2)


@pytest.mark.parametrize("outputs", [("y",), ("yh",), ("yc",), ("y", "yc"), ("yh", "yc")])
def test_outputs_may_be_left_out(outputs: Sequence[str]) -> None:
    check(layer(outputs=outputs, batch=2), 2)


def test_long_rows_of_data_are_multiplied_in_slices() -> None:
    check(layer(elements=1500, steps=3), 2)


def test_numbers_far_from_zero_saturate() -> None:
    model = layer(batch=2)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor) * 50
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    (subgraph,) = subgraphs_of(model)
    inputs = [np.full(kind.shape, 3, np.float32) for kind in subgraph.input_types]
    (variant, *_) = BACKEND.variants(subgraph, BuildOptions(threads=2))
    found = run_variant(subgraph, variant, 2, inputs)
    names = [subgraph.model.input_names[subgraph.model.graph.inputs.index(v)] for v in subgraph.inputs]
    with np.errstate(over="ignore"):
        wanted = computed(model, dict(zip(names, inputs, strict=True)))
    for name, mine in zip(NAMES, found, strict=True):
        np.testing.assert_allclose(mine, wanted[name], rtol=1e-4, atol=1e-5)


def test_short_buffers_are_refused() -> None:
    (subgraph,) = subgraphs_of(layer(batch=2))
    (variant, *_) = BACKEND.variants(subgraph, BuildOptions(threads=2))
    packed = LAYER.pack(LAYER.task(subgraph), BuildOptions(threads=2, variant=variant))
    kernel = LAYER.load(replace(packed, numbers={**packed.numbers, "steps": 50}), 2)
    arrays = [[aligned_array(kind) for kind in kinds] for kinds in (subgraph.input_types, subgraph.output_types)]
    with pytest.raises(MalformedError, match="the data has"):
        kernel.steps(*arrays)
