"""Models that compute in bfloat16 are computed in float32, and what goes in and comes out stays bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.frontend.read.load import computes_in_bfloat16, load_onnx

BF16, FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT
N = helper.make_node
RANDOM = np.random.default_rng(0)


def narrow(*shape: int) -> Any:
    return (RANDOM.standard_normal(shape) / np.sqrt(shape[0])).astype(ml_dtypes.bfloat16)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int]],
    outputs: dict[str, Sequence[int]],
    weights: dict[str, Any] | None = None,
    *,
    made: int = BF16,
    read: int = BF16,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "it",
        [helper.make_tensor_value_info(name, read, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, made, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def layers() -> tuple[onnx.ModelProto, dict[str, Any]]:
    weights = {"a": narrow(48, 64), "b": narrow(64), "c": narrow(64, 24), "g": narrow(24)}
    nodes = [
        N("MatMul", ["x", "a"], ["h"]),
        N("Add", ["h", "b"], ["i"]),
        N("Relu", ["i"], ["j"]),
        N("Cast", ["j"], ["wide"], to=FLOAT),  # as exports of mixed precision have it
        N("Sqrt", ["wide"], ["root"]),
        N("Cast", ["root"], ["back"], to=BF16),
        N("MatMul", ["back", "c"], ["y"]),
        N("Mul", ["y", "g"], ["z"]),
    ]
    return model_of(nodes, {"x": [5, 48]}, {"y": [5, 24], "z": [5, 24]}, weights), weights


def expected(x: Any, weights: dict[str, Any]) -> list[Any]:
    a, b, c, g = (weights[name].astype(np.float64) for name in "abcg")
    y = np.sqrt(np.maximum(x.astype(np.float64) @ a + b, 0)) @ c
    return [y, y * g]


@pytest.mark.parametrize("backends", [None, ["openvino"], ["onnxruntime"]])
def test_a_network_in_bfloat16(backends: list[str] | None, tmp_path: Path) -> None:
    """Its results are float32's, rounded once."""
    model, weights = layers()
    module = collage.compile(
        model, db=tmp_path / "db.sqlite", backends=backends, progress=False, quick=backends is None
    )
    module.save(tmp_path / "it.collage")
    x = narrow(5, 48)
    for each in (module, collage.load(tmp_path / "it.collage")):
        for found, wanted in zip(each(x), expected(x, weights), strict=True):
            assert found.dtype == ml_dtypes.bfloat16
            rounding = 2**-8 * np.abs(wanted)  # half a step of eight bits
            assert (np.abs(found.astype(np.float64) - wanted) <= rounding + 1e-5).all()


def branch(name: str, op: str) -> onnx.GraphProto:
    return helper.make_graph([N(op, ["h"], [name])], name, [], [helper.make_tensor_value_info(name, BF16, [3])])


def test_branches_that_read_what_is_around_them(tmp_path: Path) -> None:
    nodes = [
        N("Add", ["x", "w"], ["h"]),
        N("ReduceSum", ["x"], ["sum"], keepdims=0),
        N("Cast", ["sum"], ["float"], to=FLOAT),
        N("Greater", ["float", "zero"], ["positive"]),
        N("If", ["positive"], ["y"], then_branch=branch("t", "Neg"), else_branch=branch("e", "Abs")),
    ]
    weights = {"w": narrow(3), "zero": np.array(0, np.float32)}
    module = collage.compile(
        model_of(nodes, {"x": [3]}, {"y": [3]}, weights),
        db=tmp_path / "db.sqlite",
        progress=False,
        quick=True,
    )
    for sign in (1, -1):
        x = np.array([1, 2, 0.5], ml_dtypes.bfloat16) * ml_dtypes.bfloat16(sign)
        h = x.astype(np.float64) + weights["w"].astype(np.float64)
        wanted = -h if sign > 0 else np.abs(h)
        assert np.abs(module(x).astype(np.float64) - wanted).max() <= 2**-7 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("nodes", "made", "read", "computes"),
    [
        ([N("Cast", ["x"], ["y"], to=BF16)], BF16, FLOAT, False),
        ([N("Transpose", ["x"], ["t"]), N("Cast", ["t"], ["y"], to=FLOAT)], FLOAT, BF16, False),
        ([N("Cast", ["x"], ["f"], to=FLOAT), N("Exp", ["f"], ["y"])], FLOAT, BF16, False),
        ([N("Cast", ["x"], ["b"], to=BF16), N("Exp", ["b"], ["y"])], BF16, FLOAT, True),
        ([N("Transpose", ["x"], ["t"]), N("Exp", ["t"], ["y"])], BF16, BF16, True),
        ([N("CastLike", ["x", "w"], ["b"]), N("Exp", ["b"], ["y"])], BF16, FLOAT, True),
        ([N("Cast", ["w"], ["f"], to=FLOAT), N("CastLike", ["x", "f"], ["g"]), N("Exp", ["g"], ["y"])],
            FLOAT, BF16, False),
        ([N("RandomNormalLike", ["x"], ["y"], dtype=BF16)], BF16, FLOAT, True),
    ],
)  # fmt: skip
def test_what_computes_in_bfloat16(nodes: list[onnx.NodeProto], made: int, read: int, computes: bool) -> None:
    """Casts and moves of data stay as they are: the first rounds, which the model may be for."""
    model = model_of(nodes, {"x": [3]}, {"y": [3]}, {"w": narrow(3)}, made=made, read=read)
    assert computes_in_bfloat16(model) == computes
    if not computes:
        assert [node.op_type for node in load_onnx(model).graph.node] == [node.op_type for node in nodes]
