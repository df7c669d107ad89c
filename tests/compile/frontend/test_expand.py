"""Operators that the standard defines by others are replaced by those, and the numbers stay the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import collage
from collage.frontend.model import import_model
from collage.frontend.read.load import load_onnx
from collage.frontend.rewrite.expand import EXPANDED, expand
from collage.frontend.session import reference_run
from tests.helpers.models import make_model

HEADS = {"q": [1, 2, 6, 8], "k": [1, 2, 6, 8], "v": [1, 2, 6, 8]}


def attention() -> onnx.ModelProto:
    """Causal attention between a projection and what follows it."""
    nodes = [
        helper.make_node("MatMul", ["q", "w"], ["p"], "project"),
        helper.make_node("Attention", ["p", "k", "v"], ["a"], "attend", is_causal=1, scale=0.5),
        helper.make_node("Relu", ["a"], ["y"], "relu"),
    ]
    weights = {"w": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)}
    return make_model(nodes, HEADS, {"y": [1, 2, 6, 8]}, weights, opset=23)


def window() -> onnx.ModelProto:
    """Attention to the last three positions, of an operator set that ONNX Runtime may not know."""
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], "attend", is_causal=1, left_window_size=2)
    return make_model([node], HEADS, {"y": [1, 2, 6, 8]}, opset=25)


def one(op: str, opset: int, **attributes: float) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], op.lower(), **attributes)
    return make_model([node], {"x": [3, 4]}, {"y": [3, 4]}, opset=opset)


def rotation() -> onnx.ModelProto:
    node = helper.make_node("RotaryEmbedding", ["x", "cos", "sin"], ["y"], "rotate")
    shapes = {"x": [1, 2, 3, 4], "cos": [1, 3, 2], "sin": [1, 3, 2]}
    return make_model([node], shapes, {"y": [1, 2, 3, 4]}, opset=23)


def known(model: onnx.ModelProto) -> bool:
    """Whether the installed ONNX Runtime takes models of that operator set."""
    expanded = expand(load_onnx(model)).SerializeToString()
    try:
        ort.InferenceSession(expanded, providers=["CPUExecutionProvider"])
    except Exception:  # its exceptions share no base class but Exception
        return False
    return True


MODELS = {
    "attention": attention(),
    "celu": one("Celu", 12, alpha=0.5),
    "celu by default, in a later set": one("Celu", 18),
    "swish": one("Swish", 24, alpha=1.5),
    "rotation": rotation(),
}


def values(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        info.name: rng.standard_normal([d.dim_value for d in info.type.tensor_type.shape.dim]).astype(np.float32)
        for info in model.graph.input
    }


@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_stay(name: str) -> None:
    model = load_onnx(MODELS[name])
    inputs = values(model)
    expanded = expand(model)
    onnx.checker.check_model(expanded, full_check=True)
    assert not EXPANDED & {node.op_type for node in expanded.graph.node}
    assert not expanded.functions
    assert [o.name for o in expanded.graph.output] == [o.name for o in model.graph.output]
    (expected,) = ReferenceEvaluator(MODELS[name]).run(None, inputs)
    (found,) = ReferenceEvaluator(expanded).run(None, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    if known(MODELS[name]):
        assert import_model(MODELS[name]).opaque == {}


def test_the_reference_has_what_the_engine_lacks() -> None:
    model = load_onnx(window())
    if not known(model):
        pytest.skip("an operator set that this ONNX Runtime does not take")
    inputs = values(model)
    (found,) = reference_run(model, inputs)
    q, k, v = (inputs[name].astype(np.float64) for name in "qkv")
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(8)
    row, column = np.indices((6, 6))
    scores = np.where((column <= row) & (column >= row - 2), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_it_compiles(tmp_path: Path) -> None:
    model = attention()
    if not known(model):
        pytest.skip("an operator set that this ONNX Runtime does not take")
    module = collage.compile(model, db=tmp_path / "db.sqlite", progress=False, quick=True)
    assert module.report.opaque == {}
    inputs = values(model)
    np.testing.assert_allclose(module(**inputs), reference_run(load_onnx(model), inputs)[0], rtol=1e-4, atol=1e-5)
