"""Compiled modules on unusual numbers: whatever backend was fastest, the answer is ONNX Runtime's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from collage.backends.openvino import OpenVino
from collage.graph.dataflow import Array
from collage.kernel.options import BuildOptions
from collage.measure.jobs import RegionJob
from collage.measure_db.results import Measurement, Outcome
from tests.helpers.models import conv_net, make_model
from tests.helpers.preferred import preferred

BACKENDS: list[list[str] | None] = [
    ["openvino", "onnxruntime"],
    ["onednn", "onnxruntime"],
    ["tvm", "onnxruntime"],
    None,
]


def reference(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(model.SerializeToString(), options).run(None, feeds))


def compiled(model: onnx.ModelProto, backends: list[str] | None, folder: Path) -> Any:
    """The model as a mix if there is one, however fast engines are on it."""
    with preferred():
        return collage.compile(model, backends=backends, db=folder / "db.sqlite", threads=2, quick=True)


def ids_beside_a_product() -> onnx.ModelProto:
    """A product of floats, and ``id * 31 + 7`` of 64-bit integers."""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Mul", ["id", "k"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["hash"]),
    ]
    weights = {"w": w, "k": np.array(31, np.int64), "b": np.array(7, np.int64)}
    types = {"id": TensorProto.INT64, "hash": TensorProto.INT64}
    return make_model(nodes, {"x": [4, 64], "id": [4]}, {"y": [4, 64], "hash": [4]}, weights, types=types)


@pytest.mark.parametrize("backends", BACKENDS, ids=str)
def test_large_integers(backends: list[str] | None, tmp_path: Path) -> None:
    model = ids_beside_a_product()
    module = compiled(model, backends, tmp_path)
    feeds = {
        "x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32),
        "id": np.array([69273667, -(2**40), 3, 2**62], np.int64),
    }
    expected = reference(model, feeds)
    found = module.run(feeds)
    assert found["hash"].tolist() == expected[1].tolist()
    assert np.allclose(found["y"], expected[0], atol=1e-4)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("backends", BACKENDS, ids=str)
def test_extraordinary_pixels(
    backends: list[str] | None, special: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = conv_net()
    folder = tmp_path_factory.getbasetemp() / f"right-{backends}"
    folder.mkdir(exist_ok=True)
    module = compiled(model, backends, folder)
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)
    (ordinary,) = reference(model, {"x": x})
    assert np.allclose(module(x), ordinary, rtol=1e-4, atol=1e-4 * np.abs(ordinary).max())
    x[0, 1, 3, 4] = special
    (expected,) = reference(model, {"x": x})
    found = module(x)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.allclose(found, expected, rtol=1e-3, equal_nan=True)


def how_many_are_positive() -> onnx.ModelProto:
    """Shapes depend on data, so that one engine runs the whole model."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("NonZero", ["y"], ["places"]),
    ]
    types = {"places": TensorProto.INT64}
    return make_model(nodes, {"x": [4, 64]}, {"y": [4, 64], "places": [2, "n"]}, types=types)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_an_engine_that_runs_all_of_a_model(special: float, tmp_path: Path) -> None:
    """OpenVINO's Relu drops NaN; such a call is answered by ONNX Runtime."""
    model = how_many_are_positive()
    module = compiled(model, ["openvino"], tmp_path)
    module.save(tmp_path / "m.collage")
    assert module.program.executed[-1].finite_only
    for each in (module, collage.load(tmp_path / "m.collage")):
        x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
        for value in (1.0, special):
            x[2, 3] = value
            y, places = reference(model, {"x": x})
            found = each.run({"x": x})
            assert np.array_equal(found["y"], y, equal_nan=True)
            assert np.array_equal(found["places"], places)


def test_inputs_are_guarded_where_only_the_last_check_finds_nan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the gate has missed that a kernel drops NaN, the module is wrong on NaN, and its inputs are scanned."""
    run = RegionJob.run
    monkeypatch.setattr(RegionJob, "run", lambda *about: ((what, _right(outcome)) for what, outcome in run(*about)))
    module = compiled(conv_net(), ["openvino", "onednn"], tmp_path)
    assert not any(region.finite_only for region in module.program.regions)
    assert sum(len(region.scans) for region in module.program.regions) == 1
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)
    for special in (1.0, np.nan):
        x[0, 1, 3, 4] = special
        (expected,) = reference(conv_net(), {"x": x})
        assert np.allclose(module(x), expected, rtol=1e-3, atol=1e-4, equal_nan=True)


def _right(outcome: Outcome) -> Outcome:
    return replace(outcome, finite_only=False) if isinstance(outcome, Measurement) else outcome


@pytest.mark.parametrize("by", [41, 55])
@pytest.mark.parametrize("backends", BACKENDS, ids=str)
def test_quotients_of_multiples_are_exact(backends: list[str] | None, by: int, tmp_path: Path) -> None:
    """The row of an element of a picture is the floor of its number over the width."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Div", ["r", "width"], ["q"]),
        helper.make_node("Floor", ["q"], ["y"]),
    ]
    model = make_model(nodes, {"x": [64, by]}, {"y": [64, by]}, {"width": np.float32(by)})
    x = np.arange(64 * by, dtype=np.float32).reshape(64, by)
    found = compiled(model, backends, tmp_path).run({"x": x})["y"]
    np.testing.assert_array_equal(found, np.repeat(np.arange(64, dtype=np.float32)[:, None], by, 1))


@pytest.mark.parametrize(
    "nodes",
    [
        [("Div", ["r", "width"], ["q"]), ("Mul", ["q", "two"], ["p"]), ("Floor", ["p"], ["y"])],
        [("Div", ["one", "r"], ["q"]), ("Mul", ["q", "r"], ["p"]), ("Floor", ["p"], ["y"])],
        [("Div", ["r", "width"], ["q"]), ("Sub", ["q", "two"], ["p"]), ("Floor", ["p"], ["y"])],
        [("Div", ["r", "width"], ["q"]), ("GreaterOrEqual", ["q", "one"], ["b"]), ("Cast", ["b"], ["y"])],
        [("Div", ["r", "width"], ["q"]), ("Sub", ["q", "one"], ["p"]), ("Sign", ["p"], ["y"])],
        [
            ("Div", ["r", "width"], ["q"]),
            ("Sub", ["q", "one"], ["p"]),
            ("Bool", ["p"], ["b"]),
            ("Cast", ["b"], ["y"]),
        ],
    ],
    ids=["product", "reciprocal", "difference", "comparison", "sign", "truth"],
)
@pytest.mark.parametrize("backends", BACKENDS, ids=str)
def test_what_is_rounded_after_a_quotient(
    backends: list[str] | None, nodes: list[tuple[str, list[str], list[str]]], tmp_path: Path
) -> None:
    """Not x * (2 / 41) for x / 41 * 2, not r / r for 1 / r * r, and no reciprocals."""
    kinds = {"Cast": TensorProto.FLOAT, "Bool": TensorProto.BOOL}
    made = [
        helper.make_node("Cast", taken, given, to=kinds[op]) if op in kinds else helper.make_node(op, taken, given)
        for op, taken, given in nodes
    ]
    used = {name for node in made for name in node.input}
    weights = {name: np.float32(v) for name, v in {"width": 41, "one": 1, "two": 2}.items() if name in used}
    model = make_model([helper.make_node("Relu", ["x"], ["r"]), *made], {"x": [64, 64]}, {"y": [64, 64]}, weights)
    x = np.arange(1, 64 * 64 + 1, dtype=np.float32).reshape(64, 64) / 2
    found = compiled(model, backends, tmp_path).run({"x": x})["y"]
    np.testing.assert_array_equal(found, reference(model, {"x": x})[0])


_LARGE = 1.5 * 2**23
"""Float32 has whole numbers only beside it."""


@pytest.mark.parametrize("nodes", [["Mul"], ["MatMul"], ["MatMul", "Relu"]], ids=" ".join)
@pytest.mark.parametrize("backends", [*BACKENDS, ["openvino"], ["native", "tvm"]], ids=str)
def test_rounding_by_a_large_constant(backends: list[str] | None, nodes: list[str], tmp_path: Path) -> None:
    """Who adds both constants first does not round, and the same in float64 does not either."""
    made, value = [], "x"
    for op in nodes:
        made.append(helper.make_node(op, [value] if op == "Relu" else [value, "factor"], [op]))
        value = op
    made += [helper.make_node("Add", [value, "large"], ["a"]), helper.make_node("Sub", ["a", "large"], ["y"])]
    factor = 40 * (np.eye(64, dtype=np.float32) if "MatMul" in nodes else np.float32(1))
    weights = {"factor": np.float32(factor), "large": np.float32(_LARGE)}
    model = make_model(made, {"x": [64, 64]}, {"y": [64, 64]}, weights)
    module = compiled(model, None if backends is None else [*backends, "onnxruntime"], tmp_path)
    x = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    expected = np.rint(40 * x)
    np.testing.assert_array_equal(module.run({"x": x})["y"], np.maximum(expected, 0) if "Relu" in nodes else expected)


_WHOLE = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)


@pytest.mark.parametrize(
    ("nodes", "x"),
    [
        ([("Mul", "x hundredth", "m", {}), ("Mul", "m hundred", "p", {}), ("Floor", "p", "y", {})], _WHOLE),
        ([("Softplus", "x", "s", {}), ("Log", "s", "y", {})], -_WHOLE[:, ::-1] / 240),
        ([("Cast", "x", "h", {"to": TensorProto.FLOAT16}), ("Cast", "h", "y", {"to": 1})], 40 * _WHOLE),
        ([("Cast", "x", "i", {"to": TensorProto.INT32}), ("Div", "i two", "y", {})], _WHOLE - 2048),
    ],
    ids=["constants at once", "small softplus", "16 bits", "negative integers"],
)
@pytest.mark.parametrize("backends", [["openvino", "onnxruntime"], None], ids=str)
def test_what_openvino_rewrites(
    backends: list[str] | None, nodes: list[tuple[str, str, str, dict[str, Any]]], x: Array, tmp_path: Path
) -> None:
    """OpenVINO has other numbers for these, and none of them are among those that kernels are tried on."""
    made = [helper.make_node(op, taken.split(), given.split(), **attrs) for op, taken, given, attrs in nodes]
    numbers = {"hundredth": 0.01, "hundred": 100}
    constants = {name: np.float32(number) for name, number in numbers.items()} | {"two": np.int32(2)}
    used = {name for node in made for name in node.input}
    types = {"y": TensorProto.INT32} if "i" in used else {}
    weights = {name: array for name, array in constants.items() if name in used}
    model = make_model(made, {"x": [64, 64]}, {"y": [64, 64]}, weights, types=types)
    found = compiled(model, backends, tmp_path).run({"x": x})["y"]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, reference(model, {"x": x})[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("between", [[], ["Relu"]], ids=["alone", "relu"])
@pytest.mark.parametrize("backends", [["onednn"], ["mkl", "tvm"], ["native", "tvm"], None], ids=str)
def test_a_quotient_of_a_product(backends: list[str] | None, between: list[str], tmp_path: Path) -> None:
    """Rows of a table by one-hot vectors: the quotient must not become a factor of the table, which is rounded."""
    nodes = [
        helper.make_node("MatMul", ["x", "table"], ["m"]),
        helper.make_node("Div", ["m", "width"], ["q"]),
    ]
    for op in between:
        nodes.append(helper.make_node(op, [nodes[-1].output[0]], [op]))
    nodes.append(helper.make_node("Floor", [nodes[-1].output[0]], ["y"]))
    table = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    weights = {"table": table, "width": np.float32(41)}
    model = make_model(nodes, {"x": [64, 64]}, {"y": [64, 64]}, weights)
    module = compiled(model, None if backends is None else [*backends, "onnxruntime"], tmp_path)
    x = np.eye(64, dtype=np.float32)
    np.testing.assert_array_equal(module.run({"x": x})["y"], np.floor(table // 41))


@pytest.mark.parametrize("backends", [["tvm"], None], ids=str)
def test_normalisation_of_numbers_far_from_zero(backends: list[str] | None, tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("MeanVarianceNormalization", ["x"], ["y"])],
        {"x": [1, 2, 8, 8]},
        {"y": [1, 2, 8, 8]},
    )
    drawn = np.random.default_rng(0).standard_normal((1, 2, 8, 8))
    x = (300 + 0.01 * drawn).astype(np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean((0, 2, 3), keepdims=True)
    expected = centred / np.sqrt((centred**2).mean((0, 2, 3), keepdims=True))
    np.testing.assert_allclose(compiled(model, backends, tmp_path).run({"x": x})["y"], expected, atol=0.02)


_POSITIVE = {name: np.abs(np.random.default_rng(7).standard_normal((64, 64))).astype(np.float32) for name in "xz"}
_QUOTIENT = [helper.make_node("Div", ["x", "z"], ["q"]), helper.make_node("Relu", ["q"], ["y"])]
_AFTER_A_PRODUCT = [
    helper.make_node("MatMul", ["x", "w"], ["m"]),
    helper.make_node("Relu", ["m"], ["r"]),
    helper.make_node("Div", ["r", "z"], ["q"]),
    helper.make_node("Relu", ["q"], ["y"]),
]


@pytest.mark.parametrize("nodes", [_QUOTIENT, _AFTER_A_PRODUCT], ids=["alone", "after a product"])
@pytest.mark.parametrize("backends", BACKENDS, ids=str)
def test_nan_that_a_kernel_makes_inside_of_itself(
    backends: list[str] | None, nodes: list[onnx.NodeProto], tmp_path: Path
) -> None:
    """All samples are positive, and then numbers are zero: 0 / 0 before a relu, of which no scan knows."""
    weights = {"w": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}
    used = {name for node in nodes for name in node.input}
    weights = {name: array for name, array in weights.items() if name in used}
    model = make_model(nodes, {"x": [64, 64], "z": [64, 64]}, {"y": [64, 64]}, weights)
    module = collage.compile(
        model, backends=backends, db=tmp_path / "db.sqlite", threads=2, quick=True, inputs=_POSITIVE
    )
    zeros = {name: array.copy() for name, array in _POSITIVE.items()}
    for array in zeros.values():
        array[3] = 0
    for feeds in (_POSITIVE, zeros):
        (expected,) = reference(model, feeds)
        found = module.run(feeds)["y"]
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.isnan(reference(model, zeros)[0]).any()


@pytest.mark.parametrize(
    ("backends", "axes"),
    [
        *((each, axes) for each in BACKENDS for axes in ([-1], [2, 3], [1])),
        (["openvino"], [-1]),
        (["openvino"], [2, 3]),
    ],
    ids=str,
)
def test_the_maximum_of_what_is_masked_everywhere(backends: list[str] | None, axes: list[int], tmp_path: Path) -> None:
    """Of negative infinities it is one of them, and not the least finite number."""
    nodes = [helper.make_node("ReduceMax", ["x"], ["y"], axes=axes, keepdims=0)]
    shape = [2, 6, 8, 24]
    left = [n for at, n in enumerate(shape) if at not in [axis % 4 for axis in axes]]
    model = make_model(nodes, {"x": shape}, {"y": left}, opset=13)
    module = compiled(model, backends, tmp_path)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x[0, 3], x[1, :, 5, 7], x[1, 1, 2] = -np.inf, -np.inf, -np.inf
    np.testing.assert_array_equal(module.run({"x": x})["y"], np.max(x, axis=tuple(axes)))


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("Mul", ["x", "c"], ["y"]),
        helper.make_node("Div", ["x", "c"], ["y"]),
    ],
    ids=lambda node: str(node.op_type),
)
def test_zeros_keep_their_signs(node: onnx.NodeProto, tmp_path: Path) -> None:
    """The reciprocal of a zero is infinite, with its sign."""
    weights = {} if node.op_type == "Neg" else {"c": np.float32(4)}
    model = make_model([node], {"x": [8, 32]}, {"y": [8, 32]}, weights)
    x = np.tile(np.array([0.0, -0.0, 1, -1], np.float32), 64).reshape(8, 32)
    found = compiled(model, ["onednn"], tmp_path).run({"x": x})["y"]
    np.testing.assert_array_equal(np.signbit(found), np.signbit(reference(model, {"x": x})[0]))


def test_openvino_rounds_no_data_that_meet_weights_of_8_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 127, (256, 512)).astype(np.int8)
    scale = ((rng.random(512) + 0.5) / 100).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    model = make_model(nodes, {"x": [32, 256]}, {"y": [32, 512]}, {"w": w, "s": scale})
    session = OpenVino().session(model.SerializeToString(), BuildOptions(2))
    x = rng.standard_normal((32, 256)).astype(np.float32)
    expected = x.astype(np.float64) @ (w.astype(np.float64) * scale)
    (found,) = session.run([x])
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
