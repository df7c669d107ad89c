"""Operators of sets 1 to 6, which ONNX Runtime lacks, mean in set 7 what they meant before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.errors import CollageError
from collage.frontend.read.load import load_onnx
from collage.frontend.session import reference_run

Array = np.ndarray
N = helper.make_node
RNG = np.random.default_rng(0)
X = RNG.standard_normal((1, 4, 3, 4)).astype(np.float32)
C = np.array([0.5, -1.0, 2.0, 3.0], np.float32)
"""One number for each channel of X, and as many as its last axis has."""
ROWS = RNG.standard_normal((4, 3)).astype(np.float32)
ALONG = C.reshape(4, 1, 1)


def old_model(
    nodes: Sequence[onnx.NodeProto],
    opset: int,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array] = {},
    outputs: Mapping[str, int] = {"y": TensorProto.FLOAT},
    symbolic: bool = False,
) -> onnx.ModelProto:
    """A model as exporters wrote it then: of IR version 3, whose weights are inputs of the graph, too."""

    def info(name: str, array: Array) -> onnx.ValueInfoProto:
        shape = ["n", *array.shape[1:]] if symbolic and name == "x" else list(array.shape)
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)

    graph = helper.make_graph(
        nodes,
        "old",
        [info(name, array) for name, array in {**inputs, **weights}.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


@dataclass(frozen=True)
class Case:
    """One operator of an old set on X, and what it makes."""

    node: onnx.NodeProto
    opset: int
    expected: Any
    weights: Mapping[str, Array] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=lambda: {"y": TensorProto.FLOAT})
    inputs: Mapping[str, Array] = field(default_factory=lambda: {"x": X})

    def model(self, *, symbolic: bool = False) -> onnx.ModelProto:
        return old_model([self.node], self.opset, self.inputs, self.weights, self.outputs, symbolic)


def along(op: str, function: Callable[[Any, Any], Any], kind: int = TensorProto.FLOAT, opset: int = 6) -> Case:
    node = N(op, ["x", "b"], ["y"], broadcast=1, axis=1)
    return Case(node, opset, function(X, ALONG), {"b": C}, {"y": kind})


TWO = {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}
WINDOWS = np.lib.stride_tricks.sliding_window_view(X, (2, 2), axis=(2, 3)).astype(np.float64)

CASES = {
    "slopes of channels": Case(N("PRelu", ["x", "s"], ["y"]), 6, np.where(X < 0, X * ALONG, X), {"s": C}),
    "one slope": Case(N("PRelu", ["x", "s"], ["y"]), 1, np.where(X < 0, X * C[0], X), {"s": C[:1]}),
    "Add": along("Add", np.add, opset=1),
    "Greater": along("Greater", np.greater, TensorProto.BOOL),
    "And": Case(
        N("And", ["x", "b"], ["y"], broadcast=1, axis=1),
        6,
        np.logical_and(X > 0, ALONG > 0),
        inputs={"x": X > 0, "b": C > 0},
        outputs={"y": TensorProto.BOOL},
    ),
    "the last axes": Case(N("Add", ["x", "b"], ["y"], broadcast=1), 6, X + C, {"b": C}),
    "two axes in the middle": Case(
        N("Add", ["x", "b"], ["y"], broadcast=1, axis=1), 6, X + ROWS[..., None], {"b": ROWS}
    ),
    "an operand that is no weight": Case(
        N("Add", ["x", "b"], ["y"], broadcast=1, axis=1), 6, X + ALONG, inputs={"x": X, "b": C}
    ),
    "one number along an axis": Case(
        N("Add", ["x", "b"], ["y"], broadcast=1, axis=0), 6, X + 2, {"b": np.array(2, np.float32)}
    ),
    "a type as text": Case(
        N("Cast", ["x"], ["y"], to="INT32"), 1, X.astype(np.int32), outputs={"y": TensorProto.INT32}
    ),
    "sizes as attribute": Case(
        N("Split", ["x"], ["y", "z"], axis=1, split=[1, 3]), 1, [X[:, :1], X[:, 1:]], outputs=TWO
    ),
    "sizes as input": Case(
        N("Split", ["x", "s"], ["y", "z"], axis=1),
        1,
        [X[:, :1], X[:, 1:]],
        {"s": np.array([1, 3], np.float32)},
        TWO,
    ),
    "widths of another name": Case(
        N("Pad", ["x"], ["y"], paddings=[0, 0, 1, 0, 0, 0, 0, 2], value=1.5),
        1,
        np.pad(X, [(0, 0), (0, 0), (1, 0), (0, 2)], constant_values=1.5),
    ),
    "one axis repeated": Case(
        N("Tile", ["x", "t", "a"], ["y"]),
        1,
        np.tile(X, (1, 3, 1, 1)),
        {"t": np.array([3], np.float32), "a": np.array([1], np.float32)},
    ),
    "a norm of windows": Case(
        N("LpPool", ["x"], ["y"], kernel_shape=[2, 2], p=2.0), 1, np.sqrt((WINDOWS**2).sum((-1, -2)))
    ),
    "a norm of all": Case(
        N("GlobalLpPool", ["x"], ["y"], p=1.0), 1, np.abs(X.astype(np.float64)).sum((2, 3), keepdims=True)
    ),
    "a sum of a product": Case(
        N("Gemm", ["x", "w", "b"], ["y"], broadcast=1),
        6,
        X[0, 0] @ ROWS + C[:3],
        {"w": ROWS, "b": C[:3]},
        inputs={"x": X[0, 0]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_operator(name: str) -> None:
    each = CASES[name]
    found = load_onnx(each.model())
    assert found.opset_import[0].version == 7
    assert len(found.opset_import) == 1 and found.ir_version == 3
    expected = each.expected if isinstance(each.expected, list) else [each.expected]
    for one, other in zip(reference_run(found, each.inputs), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("name", ["slopes of channels", "Add", "sizes as input", "a sum of a product"])
def test_an_open_number_of_rows(name: str) -> None:
    each = CASES[name]
    found = load_onnx(each.model(symbolic=True))
    expected = each.expected if isinstance(each.expected, list) else [each.expected]
    for one, other in zip(reference_run(found, each.inputs), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_an_lstm() -> None:
    """Only an attribute that says that an output is left out is gone."""
    w, r = (RNG.standard_normal((1, 8, size)).astype(np.float32) for size in (3, 2))
    x = RNG.standard_normal((5, 1, 3)).astype(np.float32)
    outputs = {"y": TensorProto.FLOAT, "h": TensorProto.FLOAT}
    node = N("LSTM", ["x", "w", "r"], ["y", "h"], hidden_size=2, output_sequence=1)
    y, h = reference_run(load_onnx(old_model([node], 6, {"x": x}, {"w": w, "r": r}, outputs)), {"x": x})
    state, cell = np.zeros((1, 2)), np.zeros((1, 2))
    for step in x:
        i, o, f, c = np.split(step @ w[0].T + state @ r[0].T, 4, axis=1)
        i, o, f = (1 / (1 + np.exp(-each)) for each in (i, o, f))
        cell = f * cell + i * np.tanh(c)
        state = o * np.tanh(cell)
    np.testing.assert_allclose(h[0], state, rtol=1e-5)
    np.testing.assert_allclose(y[-1, 0], state, rtol=1e-5)


def chain() -> onnx.ModelProto:
    """Each operator's rank is known only where that of the one before is, of which onnx infers none in set 4."""
    nodes = [
        N("Add", ["x", "b"], ["a"], broadcast=1, axis=1),
        N("PRelu", ["a", "b"], ["p"]),
        N("Concat", ["p", "x"], ["c"]),
        N("Tile", ["c", "t", "axis"], ["d"]),
        N("Mul", ["d", "k"], ["m"], broadcast=1, axis=1),
        N("Reshape", ["m"], ["y"], shape=[0, -1]),
    ]
    weights = {
        "b": C,
        "t": np.array([2], np.float32),
        "axis": np.array([1], np.float32),
        "k": np.arange(16, dtype=np.float32),
    }
    return old_model(nodes, 3, {"x": X}, weights)


def test_a_chain() -> None:
    a = X + ALONG
    p = np.where(a < 0, a * ALONG, a)
    c = np.tile(np.concatenate([p, X], 1), (1, 2, 1, 1))
    expected = (c * np.arange(16, dtype=np.float32).reshape(16, 1, 1)).reshape(1, -1)
    np.testing.assert_allclose(reference_run(load_onnx(chain()), {"x": X})[0], expected, rtol=1e-5)


def in_a_branch(node: onnx.NodeProto) -> onnx.ModelProto:
    then = helper.make_graph([node], "then", [], [helper.make_empty_tensor_value_info("r")])
    other = helper.make_graph([N("Identity", ["x"], ["i"])], "else", [], [helper.make_empty_tensor_value_info("i")])
    choice = N("If", ["c"], ["y"], then_branch=then, else_branch=other)
    return old_model([choice], 1, {"x": X, "c": np.array(True)}, {"b": C})


def test_operators_in_branches() -> None:
    """Ranks are not looked up there: what needs one keeps the model in its operator set, which ONNX Runtime refuses."""
    found = load_onnx(in_a_branch(N("Pad", ["x"], ["r"], paddings=[0, 0, 0, 1, 0, 0, 0, -1])))
    (y,) = reference_run(found, {"x": X, "c": np.array(True)})
    np.testing.assert_array_equal(y, np.pad(X[..., :-1], [(0, 0)] * 3 + [(1, 0)]))
    assert load_onnx(in_a_branch(N("PRelu", ["x", "b"], ["r"]))).opset_import[0].version == 1


UNKNOWN = {
    "a rank": N("PRelu", ["x", "b"], ["y"]),
    "a number": N("Split", ["x", "b"], ["y"]),
    "a type": N("Cast", ["x"], ["y"], to="INT31"),
    "a norm": N("GlobalLpPool", ["x"], ["y"], p=1.5),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_refused(name: str, tmp_path: Path) -> None:
    model = old_model([UNKNOWN[name]], 1, {"x": X, "b": C})
    if name == "a rank":
        for info in model.graph.input:
            info.type.tensor_type.ClearField("shape")
    assert load_onnx(model).opset_import[0].version == 1
    with pytest.raises(CollageError):
        collage.compile(model, quick=True, db=tmp_path / "db.sqlite", progress=False)
