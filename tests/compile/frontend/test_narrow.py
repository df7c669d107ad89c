"""Models for engines that compute integers in 32 bits: bounds of integers, and the nodes without bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.backends.base import UnsupportedError
from collage.backends.engine_faults.narrow_arithmetic import narrowed_nodes, whole_problem
from collage.backends.openvino import OpenVino
from collage.errors import ModelError
from collage.frontend.model import import_model
from collage.frontend.rewrite.bounds import EXTENTS, Bounds, Types, integer_bounds
from collage.frontend.rewrite.casts import casts_first
from collage.frontend.session import reference_run
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches
from tests.helpers.backends_for_tests import onnx_model

FLOAT, INT64, INT32, UINT8, DOUBLE = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.UINT8,
    TensorProto.DOUBLE,
)
I64 = np.int64


def model(
    nodes: Sequence[Any], inputs: Mapping[str, Any], opset: int = 18, **weights: Any
) -> onnx.ModelProto:
    """A model whose output is the last node's, with all types inferred."""
    made = [helper.make_node(op, i.split(), o.split(), **attrs) for op, i, o, attrs in nodes]
    graph = helper.make_graph(
        made,
        "test",
        [helper.make_tensor_value_info(n, t, s) for n, (s, t) in inputs.items()],
        [onnx.ValueInfoProto(name=made[-1].output[0])],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(found, strict_mode=True, data_prop=True)


def bounds(found: onnx.ModelProto) -> Bounds | None:
    graph = found.graph
    return integer_bounds(graph, Types.of(graph), {})[graph.output[0].name]


def test_bounds_follow_arithmetic() -> None:
    nodes = [("Cast", "x", "a", {"to": INT64}), ("Mul", "a k", "b", {}), ("Sub", "b k", "c", {})]
    assert bounds(model(nodes, {"x": ([4], UINT8)}, k=I64(-3))) == Bounds(-765 + 3, 3)
    total = [*nodes, ("ReduceSum", "c", "d", {"keepdims": 0})]
    assert bounds(model(total, {"x": ([4], UINT8)}, k=I64(-3))) == Bounds(4 * -762, 12)
    clipped = [("Clip", "x low high", "y", {})]
    assert bounds(model(clipped, {"x": ([4], INT64)}, low=I64(2), high=I64(9))) == Bounds(2, 9)
    assert bounds(model([("Clip", "x low", "y", {})], {"x": ([4], INT64)}, low=I64(2))) is None
    assert bounds(model([("Add", "x k", "y", {})], {"x": ([4], INT64)}, k=I64(2))) is None
    extents = [("Shape", "x", "s", {}), ("Mul", "s s", "y", {})]
    assert bounds(model(extents, {"x": (["n", 4], FLOAT)})) == Bounds(0, EXTENTS.high**2, extents=True)


BODY = helper.make_graph(
    [helper.make_node("Mul", ["x", "k"], ["z"])],
    "body",
    [],
    [helper.make_tensor_value_info("z", INT64, [4, 5])],
)
NARROWED = {
    "arithmetic": ([("Mul", "x k", "a", {}), ("Add", "a k", "y", {})], INT64),
    "division in 32 bits": ([("Div", "x x", "y", {})], INT32),
    "a sum that wraps in 8 bits": ([("Add", "x x", "y", {})], UINT8),
    "values beyond 32 bits moved": ([("Transpose", "x", "y", {})], INT64),
    "a float that becomes a 64-bit integer": (
        [("Cast", "x", "a", {"to": INT64}), ("Add", "a k", "y", {})],
        FLOAT,
    ),
    "float64": ([("Relu", "x", "y", {})], DOUBLE),
    "comparison": ([("Greater", "x k", "y", {})], INT64),
    "a reduction": ([("ReduceMax", "x", "y", {})], INT32),
    "a body": ([("If", "c", "y", {"then_branch": BODY, "else_branch": BODY})], INT64),
}


@pytest.mark.parametrize("name", NARROWED)
def test_what_may_be_wrong_is_named(name: str) -> None:
    nodes, kind = NARROWED[name]
    found = model(nodes, {"x": ([4, 5], kind)}, k=I64(31), c=np.array(True))
    assert whole_problem(found)


RIGHT = {
    "indices": ([("Gather", "t x", "y", {})], INT64),
    "indices that are reshaped and cast": (
        [("Reshape", "x s", "a", {}), ("Cast", "a", "b", {"to": INT32}), ("Gather", "t b", "y", {})],
        INT64,
    ),
    "a comparison of indices": (
        [
            ("Gather", "t x", "g", {}),
            ("Equal", "x k", "m", {}),
            ("Where", "m u g", "y", {}),
        ],
        INT64,
    ),
    "moved in 32 bits": ([("Transpose", "x", "y", {})], INT32),
    "arithmetic on 8 bits made wider": (
        [("Cast", "x", "a", {"to": INT32}), ("Mul", "a a", "y", {})],
        UINT8,
    ),
    "where the largest is": ([("ArgMax", "x", "a", {}), ("Add", "a k", "y", {})], FLOAT),
    "a mask": ([("Cast", "x", "y", {"to": FLOAT})], INT64),
    "floats": ([("Exp", "x", "y", {})], FLOAT),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_bounded_stays(name: str) -> None:
    nodes, kind = RIGHT[name]
    weights = {"t": np.zeros(9, np.float32), "s": np.array([-1]), "k": I64(3), "u": np.float32(0)}
    used = {i for _, inputs, _, _ in nodes for i in inputs.split()}
    found = model(nodes, {"x": ([4, 5], kind)}, **{n: a for n, a in weights.items() if n in used})
    assert not narrowed_nodes(found)


def masked() -> onnx.ModelProto:
    """A mask that is reshaped before it becomes float, as PyTorch exports BERT."""
    nodes = [
        ("Unsqueeze", "mask one", "a", {}),
        ("Unsqueeze", "a two", "b", {}),
        ("Cast", "b", "c", {"to": FLOAT}),
        ("Sub", "k c", "y", {}),
    ]
    return model(nodes, {"mask": ([2, 4], INT64)}, one=np.array([1]), two=np.array([2]), k=np.float32(1))


def test_casts_come_first() -> None:
    before = masked()
    after = casts_first(before)
    assert [node.op_type for node in after.graph.node] == ["Cast", "Unsqueeze", "Unsqueeze", "Sub"]
    assert whole_problem(before) and not whole_problem(after)
    onnx.checker.check_model(after, full_check=True)
    del before.graph.value_info[:]  # types of inputs are enough
    assert [node.op_type for node in casts_first(before).graph.node] == [n.op_type for n in after.graph.node]
    mask = np.array([[0, 1, 2**40, -(2**33)], [7, 2**31, 1, 0]])
    (expected,), (got,) = (reference_run(each, {"mask": mask}) for each in (before, after))
    np.testing.assert_array_equal(got, expected)
    assert casts_first(after) is after
    assert not narrowed_nodes(import_model(masked()).onnx)


def test_a_mask_is_right_in_openvino() -> None:
    """Today's OpenVINO gives 1 - 2**33 as 1, unless the cast comes first."""
    pytest.importorskip("openvino")
    mask = np.array([[0, 1, 2**40, -(2**33)], [7, 2**31, 1, 0]])
    (expected,) = reference_run(masked(), {"mask": mask})
    options = BuildOptions()
    kernel = OpenVino().load(OpenVino().codegen_model(masked(), options), options)
    got = np.empty_like(expected)
    kernel.bind([mask], [got])()
    np.testing.assert_array_equal(got, expected)


def wide() -> onnx.ModelProto:
    """A float product beside id * 31 + 7."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Mul", ["id", "k"], ["m"]),
        helper.make_node("Add", ["m", "c"], ["z"]),
    ]
    weights = {"w": np.ones((8, 8), np.float32), "k": np.array(31), "c": np.array(7)}
    return onnx_model(
        nodes,
        {"x": ([4, 8], FLOAT), "id": ([4], INT64)},
        {"y": ([4, 8], FLOAT), "z": ([4], INT64)},
        weights,
    )


def test_openvino_is_offered_what_it_has_right() -> None:
    context = MatchContext(import_model(wide()))
    engine = OpenVino()
    matches, rejected = find_matches(context, "openvino", engine.sources(BuildOptions()))
    graph = context.graph
    taken = {graph.nodes[n].op for match in matches for n in match.nodes}
    assert taken == {"matmul"}
    assert all("int64" in each.reason for each in rejected) and rejected
    with pytest.raises(UnsupportedError, match="int64"):
        engine.codegen_model(wide(), BuildOptions())
    with pytest.raises(UnsupportedError, match="int64"):
        engine.check_model(wide().SerializeToString())


def test_openvino_alone_refuses_what_it_would_get_wrong(tmp_path: Path) -> None:
    """The user leaves out ONNX Runtime, which could run the model, and no other backend may."""
    pytest.importorskip("openvino")
    with pytest.raises(ModelError, match=r"openvino.*int64"):
        collage.compile(wide(), backends=["openvino"], quick=True, db=tmp_path / "db.sqlite")


FLOATS = [
    ([("TopK", "x k", "v i", {}), ("Cast", "i", "y", {"to": FLOAT})], "takes another one of equal values"),
    ([("TopK", "x k", "v i", {}), ("Relu", "v", "y", {})], ""),
    ([("Hardmax", "x", "y", {})], "takes another one of equal values"),
    ([("MeanVarianceNormalization", "x", "y", {"axes": [0]})], "makes 0 of equal numbers"),
    ([("Range", "o e o", "r", {}), ("Relu", "r", "y", {})], "counts in floats"),
    ([("QuantizeLinear", "x o z", "y", {})], "makes integers of 16 bits"),
    ([("Shape", "x", "s", {}), ("Sub", "s k", "a", {}), ("Div", "a k", "y", {})], "may be negative"),
    ([("Shape", "x", "s", {}), ("Div", "s k", "y", {})], ""),
    # quotients
    ([("Div", "x d", "q", {}), ("Floor", "q", "y", {})], "makes a quotient"),
    ([("Div", "x d", "q", {}), ("Flatten", "q", "f", {}), ("Cast", "f", "y", {"to": INT32})], "makes a"),
    ([("Div", "x d", "q", {}), ("Less", "q e", "b", {}), ("Where", "b q x", "y", {})], "makes a quotient"),
    ([("Relu", "x", "d2", {}), ("Div", "x d2", "q", {}), ("Floor", "q", "y", {})], "makes a quotient"),
    ([("Div", "x e", "q", {}), ("Floor", "q", "y", {})], ""),
    ([("Div", "x d", "q", {}), ("Relu", "q", "y", {})], ""),
    ([("Div", "x d", "q", {}), ("Exp", "q", "s", {}), ("Floor", "s", "y", {})], ""),
    ([("Div", "e d", "q", {}), ("Floor", "q", "f", {}), ("Mul", "x f", "y", {})], ""),
    ([("Pow", "x n", "p", {}), ("Mul", "p x", "m", {}), ("Floor", "m", "y", {})], "makes a power"),
    ([("Pow", "x e", "p", {}), ("Floor", "p", "y", {})], ""),
    # sums that round
    ([("Add", "x l", "a", {}), ("Sub", "a l", "y", {})], "a large constant is added and taken away"),
    ([("Sub", "l x", "a", {}), ("Sub", "l a", "y", {})], "a large constant is added and taken away"),
    ([("Sum", "x l", "a", {}), ("Identity", "a", "i", {}), ("Sub", "i l", "y", {})], "a large constant"),
    ([("Add", "x l", "a", {}), ("Mul", "a e", "m", {}), ("Sub", "m l4", "y", {})], "a large constant"),
    ([("Sub", "x l", "a", {}), ("Neg", "a", "n2", {}), ("Sub", "n2 l", "y", {})], "a large constant"),
    ([("Add", "x l", "a", {}), ("Add", "a l", "y", {})], ""),
    ([("Add", "x d", "a", {}), ("Sub", "a d", "y", {})], ""),
    # two constants at once
    ([("Mul", "x h", "m", {}), ("Mul", "m d", "q", {}), ("Floor", "q", "y", {})], "two constants at once"),
    ([("Add", "x h", "m", {}), ("Sub", "m h", "q", {}), ("Round", "q", "y", {})], "two constants at once"),
    ([("Mul", "x d", "m", {}), ("Mul", "m e", "q", {}), ("Floor", "q", "y", {})], ""),
    ([("Mul", "x h", "m", {}), ("Add", "m h", "q", {}), ("Floor", "q", "y", {})], ""),
    # small numbers, and roundings to 16 bits
    ([("Softplus", "x", "s", {}), ("Log", "s", "y", {})], "makes small numbers zero or negative"),
    (
        [("Exp", "x", "a", {}), ("Add", "a o", "b", {}), ("Log", "b", "c", {}), ("Sqrt", "c", "y", {})],
        "makes small numbers zero or negative",
    ),
    ([("Softplus", "x", "s", {}), ("Div", "s x", "y", {})], ""),
    (
        [("Cast", "x", "c", {"to": TensorProto.FLOAT16}), ("Cast", "c", "y", {"to": FLOAT})],
        "rounds to 16 bits, which the engine leaves out",
    ),
]


@pytest.mark.parametrize(("nodes", "wanted"), FLOATS)
def test_ties_and_rounded_quotients(nodes: Sequence[Any], wanted: str) -> None:
    """A product with a rounded reciprocal of 41 makes less than 1 of 41; one of 4 is exact."""
    numbers = {"d": 41, "e": 4, "l": 1 << 23, "l4": 1 << 25, "h": 0.01, "n": -1, "o": 1}
    weights = {name: np.float32(number) for name, number in numbers.items()}
    made = model(nodes, {"x": ([6, 60], FLOAT)}, 21, k=I64([3]), z=np.int16(0), **weights)
    assert wanted in whole_problem(made) and bool(wanted) == bool(whole_problem(made))
