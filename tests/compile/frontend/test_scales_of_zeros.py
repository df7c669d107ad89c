"""The scale of a DynamicQuantizeLinear of zeros is 1, as ONNX Runtime has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.frontend.export.to_onnx import export_onnx
from collage.frontend.model import import_model
from collage.frontend.session import reference_run
from tests.helpers.models import make_model

N = helper.make_node
QUANTIZE = N("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
TYPES = {"q": TensorProto.UINT8, "z": TensorProto.UINT8}
ROWS = {
    "zeros": np.zeros((2, 4), np.float32),
    "equal numbers": np.full((2, 4), 3, np.float32),
    "both signs": np.arange(8, dtype=np.float32).reshape(2, 4) - 3,
}


def quantized() -> onnx.ModelProto:
    outputs = {"q": [2, 4], "s": [], "z": []}
    return make_model([QUANTIZE], {"x": [2, 4]}, outputs, types=TYPES)


@pytest.mark.parametrize("name", ROWS)
def test_operators_of_the_conversion(name: str) -> None:
    model = import_model(quantized())
    graph = model.graph
    assert len(graph.nodes) > 1
    operators = export_onnx(model, range(len(graph.nodes)), graph.inputs, graph.outputs, verbatim=False)
    feeds = {"x": ROWS[name]}
    found = reference_run(operators, {operators.graph.input[0].name: ROWS[name]})
    for one, other in zip(found, reference_run(quantized(), feeds), strict=True):
        np.testing.assert_array_equal(one, other)
    if name == "zeros":
        assert found[1] == 1


def shown() -> onnx.ModelProto:
    """A network that is large enough for engines, whose scale is added to its results."""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    nodes = [N("MatMul", ["x", "w"], ["a"]), N("Relu", ["a"], ["r"])]
    nodes += [N("DynamicQuantizeLinear", ["r"], ["q", "s", "z"]), N("Add", ["r", "s"], ["y"])]
    outputs = {"y": [64, 64], "q": [64, 64]}
    return make_model(nodes, {"x": [64, 64]}, outputs, {"w": w}, types=TYPES)


@pytest.mark.parametrize("backends", [["tvm", "onnxruntime"]], ids=str)
def test_compiled(backends: list[str], tmp_path: Path) -> None:
    module = collage.compile(
        shown(), backends=backends, quick=True, db=tmp_path / "db.sqlite", progress=False, threads=2
    )
    feeds = {"x": np.zeros((64, 64), np.float32)}
    found = module.run(feeds)
    for name, array in zip(("y", "q"), reference_run(shown(), feeds), strict=True):
        np.testing.assert_array_equal(found[name], array)
