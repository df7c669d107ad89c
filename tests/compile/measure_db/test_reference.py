"""Reference values of every tensor, and conversions that are found to be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from tvm import relax

from collage.check import reference
from collage.check.bound_kernel import KernelSource
from collage.check.reference import evaluate
from collage.check.samples import Samples
from collage.check.store import ValueStore
from collage.frontend.export.to_onnx import ExportError, export_onnx
from collage.frontend.model import Model, from_simplified, import_model
from collage.frontend.random_inputs import indexed_rows, random_inputs
from collage.frontend.relax import overrides
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import TensorType
from collage.kernel.options import BuildOptions
from collage.measure_db.results import Rejection, RejectionKind
from tests.helpers.backends_for_tests import NumpyBackend, chain_model, onnx_model
from tests.helpers.measure_db.measured import measured_here

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def weights(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def evaluated(model: Model, folder: Path) -> tuple[ValueStore, dict[int, str]]:
    folder.mkdir(parents=True, exist_ok=True)
    store = ValueStore(folder / "values")
    return store, evaluate(model, random_inputs(model, np.random.default_rng(0)), store)


def load(model: Model, store: ValueStore, value: int) -> Any:
    return store.load(value, model.graph.type_of(value))


def unknown(model: Model, store: ValueStore) -> list[int]:
    return [v.id for v in model.graph.values if v.id not in store and not model.graph.is_constant(v.id)]


def perceptron() -> Model:
    """Gemm and Gelu by erf: both become several operators or several nodes, with a scalar at the end."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], transB=1, alpha=0.5),
        helper.make_node("Div", ["g", "root2"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Mul", ["g", "e"], ["m"]),
        helper.make_node("Split", ["m"], ["s0", "s1"], axis=1, num_outputs=2),
        helper.make_node("ReduceMean", ["s0"], ["mean"], keepdims=0),
        helper.make_node("GlobalAveragePool", ["image"], ["p"]),
    ]
    return import_model(
        onnx_model(
            nodes,
            {"x": ((4, 16), FLOAT), "image": ((1, 3, 5, 5), FLOAT)},
            {"s1": ((4, 4), FLOAT), "mean": ((), FLOAT), "p": ((1, 3, 1, 1), FLOAT)},
            {"w": weights(8, 16), "b": weights(8), "root2": np.array(1.4142135, np.float32)},
        )
    )


def test_every_value_is_known_and_outputs_are_onnx_runtimes(tmp_path: Path) -> None:
    model = perceptron()
    store, wrong = evaluated(model, tmp_path)
    assert wrong == {}
    assert unknown(model, store) == []
    assert len(model.graph.nodes) > len(model.onnx.graph.node), "Gemm has inner values"
    session = ort.InferenceSession(model.onnx.SerializeToString())
    inputs = random_inputs(model, np.random.default_rng(0))
    expected = session.run(None, dict(zip(model.input_names, inputs, strict=True)))
    for value, array in zip(model.graph.outputs, expected, strict=True):
        np.testing.assert_allclose(load(model, store, value), array, rtol=1e-5, atol=1e-5)


def test_inner_values_are_those_of_the_operators(tmp_path: Path) -> None:
    model = perceptron()
    store, _ = evaluated(model, tmp_path)
    matmul = next(n for n in model.graph.nodes if n.op == "matmul")
    constants: Any = model.graph.constants
    a, b = (constants[v] if v in constants else load(model, store, v) for v in matmul.inputs)
    np.testing.assert_allclose(load(model, store, matmul.outputs[0]), a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["Tanh", "Gemm"])
def test_wrong_conversion_is_found_and_can_be_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    def wrong_tanh(inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
        return relax.op.sigmoid(inputs[0])

    def wrong_gemm(inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:  # forgets alpha
        return relax.op.add(relax.op.matmul(inputs[0], relax.op.permute_dims(inputs[1])), inputs[2])

    if not isinstance(overrides.OVERRIDES, dict):
        pytest.skip("the table cannot be changed")
    monkeypatch.setitem(overrides.OVERRIDES, op, {"Tanh": wrong_tanh, "Gemm": wrong_gemm}[op])
    model = {"Tanh": chain_model, "Gemm": perceptron}[op]()
    index = next(i for i, node in enumerate(model.onnx.graph.node) if node.op_type == op)
    store, wrong = evaluated(model, tmp_path / "first")
    assert list(wrong) == [index]
    assert "differs from ONNX Runtime by" in wrong[index]

    mended = from_simplified(model.onnx, model.name, {**model.opaque, **wrong})
    assert mended.opaque == wrong
    assert f"onnx.{op}" in {node.op for node in mended.graph.nodes}
    store, wrong = evaluated(mended, tmp_path / "second")
    assert wrong == {}
    assert unknown(mended, store) == []


@pytest.mark.parametrize("instead", ["its input", "a constant"])
def test_wrong_conversion_that_leaves_no_operator_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: str
) -> None:
    def forgotten(inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
        return inputs[0] if instead == "its input" else relax.const(np.zeros((4, 8), np.float32))

    monkeypatch.setitem(overrides.OVERRIDES, "Tanh", forgotten)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Identity", ["a"], ["same"]),
        helper.make_node("Tanh", ["same"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    model = import_model(onnx_model(nodes, {"x": ((4, 8), FLOAT)}, {"y": ((4, 8), FLOAT)}))
    index = next(i for i, node in enumerate(model.onnx.graph.node) if node.op_type == "Tanh")
    assert "tanh" not in {node.op for node in model.graph.nodes}
    store, wrong = evaluated(model, tmp_path / "0")
    rounds = 0
    while wrong:
        rounds += 1
        model = from_simplified(model.onnx, model.name, {**model.opaque, **wrong})
        store, wrong = evaluated(model, tmp_path / f"{rounds}")
    assert index in model.opaque
    assert rounds == {"its input": 1, "a constant": 2}[instead], "a constant is known where it is read"
    assert unknown(model, store) == []


def test_operator_without_onnx_form_leaves_inner_values_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(model: Model, nodes: Sequence[int], *others: Any, **options: Any) -> onnx.ModelProto:
        if any(model.graph.nodes[n].op == "matmul" for n in nodes):
            raise ExportError("matmul has no ONNX form")
        return export_onnx(model, nodes, *others, **options)

    monkeypatch.setattr(reference, "export_onnx", export)
    model = perceptron()
    store, wrong = evaluated(model, tmp_path)
    assert wrong == {}
    matmul = next(n for n in model.graph.nodes if n.op == "matmul")
    assert matmul.outputs[0] in unknown(model, store)
    outcome = measured_here(KernelSource(Subgraph(model, (matmul.id,)), NumpyBackend(), BuildOptions()), Samples(store))
    assert outcome == Rejection(RejectionKind.UNSUPPORTED, "no reference value for a value inside an ONNX node")
    group = tuple(sorted(model.groups[matmul.source]))
    known = [v for n in group for v in model.graph.nodes[n].outputs if v not in unknown(model, store)]
    assert known, "the ONNX node's own output is known"


def test_opaque_nodes_control_flow_and_captured_values(tmp_path: Path) -> None:
    """If captures values of the graph around it; NonZero-free LSTM has several outputs, one left out."""
    branch = [
        helper.make_graph([helper.make_node(op, ["x", "c"], [f"{op}_out"])], op, [], [
            helper.make_tensor_value_info(f"{op}_out", FLOAT, (4, 8)),
        ])
        for op in ("Add", "Mul")
    ]  # fmt: skip
    nodes = [
        helper.make_node("Relu", ["x"], ["c"]),
        helper.make_node("If", ["flag"], ["chosen"], then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("Reshape", ["chosen", "shape"], ["sequence"]),
        helper.make_node("LSTM", ["sequence", "W", "R"], ["", "hidden"], hidden_size=4),
        helper.make_node("Tanh", ["hidden"], ["y"]),
    ]
    model = import_model(
        onnx_model(
            nodes,
            {"x": ((4, 8), FLOAT), "flag": ((), BOOL)},
            {"y": ((1, 1, 4), FLOAT)},
            {"W": weights(1, 16, 8), "R": weights(1, 16, 4), "shape": np.array([4, 1, 8])},
        )
    )
    assert {"If", "LSTM"} <= {model.onnx.graph.node[i].op_type for i in model.opaque}
    store, wrong = evaluated(model, tmp_path)
    assert wrong == {}
    assert unknown(model, store) == []
    session = ort.InferenceSession(model.onnx.SerializeToString())
    inputs = random_inputs(model, np.random.default_rng(0))
    (expected,) = session.run(None, dict(zip(model.input_names, inputs, strict=True)))
    np.testing.assert_allclose(load(model, store, model.graph.outputs[0]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (300, 100)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16", "float16", "float8_e4m3fn"])
def test_store_keeps_any_array(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    store = ValueStore(tmp_path)
    found = TensorType(shape, dtype)
    numbers = np.random.default_rng(0).integers(0, 2, shape)
    array = np.asarray(numbers).astype(getattr(ml_dtypes, dtype, dtype))
    store.save(7, array)
    again = ValueStore(tmp_path).load(7, found)
    assert (again.shape, again.dtype) == (array.shape, array.dtype)
    assert np.array_equal(again, array)
    assert 7 in store
    assert 8 not in store
    with pytest.raises(KeyError):
        store.load(8, found)


def embedding() -> Model:
    """Token ids into 50 rows, through arithmetic and views; positions into 7; a mask into nothing."""
    nodes = [
        helper.make_node("Reshape", ["tokens", "flat"], ["t1"]),
        helper.make_node("Cast", ["t1"], ["t2"], to=INT),
        helper.make_node("Gather", ["table", "t2"], ["rows"]),
        helper.make_node("Gather", ["small", "positions"], ["cols"], axis=1),
        helper.make_node("Cast", ["mask"], ["m"], to=FLOAT),
        helper.make_node("Add", ["rows", "m"], ["y"]),
        helper.make_node("Transpose", ["cols"], ["z"], perm=[1, 0]),
    ]
    return import_model(
        onnx_model(
            nodes,
            {"tokens": ((2, 6), TensorProto.INT32), "positions": ((6,), INT), "mask": ((12, 1), INT)},
            {"y": ((12, 8), FLOAT), "z": ((6, 3), FLOAT)},
            {"table": weights(50, 8), "small": weights(3, 7), "flat": np.array([12])},
        )
    )


@pytest.mark.parametrize("opaque", [False, True])
def test_indices_stay_within_what_they_index(tmp_path: Path, opaque: bool) -> None:
    model = embedding()
    if opaque:
        gathers = {i: "for the test" for i, n in enumerate(model.onnx.graph.node) if n.op_type == "Gather"}
        model = from_simplified(model.onnx, "m", gathers)
        assert "onnx.Gather" in {node.op for node in model.graph.nodes}
    assert [indexed_rows(model, value) for value in model.graph.inputs] == [50, 7, None]
    tokens, positions, mask = random_inputs(model, np.random.default_rng(0))
    assert tokens.dtype == np.int32
    assert tokens.max() > 20
    assert 0 <= tokens.min() <= tokens.max() < 50
    assert 2 <= positions.max() < 7
    assert set(mask.reshape(-1).tolist()) == {0, 1}
    store, wrong = evaluated(model, tmp_path)
    assert wrong == {}
    assert unknown(model, store) == []
