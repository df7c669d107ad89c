"""The backend for tables beside ONNX Runtime: encoders and scalers, generated ensembles, and whole compiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.backends.base import UnsupportedError
from collage.backends.tables import Tables
from collage.kernel.options import BuildOptions
from collage.native.table import table_problem
from tests.helpers.beside_onnxruntime import alike
from tests.helpers.tables import COLUMNS, floats, model_of, trees

pytestmark = pytest.mark.skipif(bool(table_problem()), reason=table_problem())

NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "scaler": ("Scaler", {"offset": [0.5, -1.0, 3.0, 0.0], "scale": [2.0, 0.1, -1.0, 0.0]}),
    "one scale": ("Scaler", {"offset": [0.5], "scale": [2.0]}),
    "maximum": ("Normalizer", {"norm": "MAX"}),
    "sum": ("Normalizer", {"norm": "L1"}),
    "norm": ("Normalizer", {"norm": "L2"}),
    "binarizer": ("Binarizer", {"threshold": 0.25}),
    "imputer of NaN": ("Imputer", {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")}),
    "imputer of a number": ("Imputer", {"imputed_value_floats": [7.0], "replaced_value_float": 1.0}),
    "one hot": ("OneHotEncoder", {"cats_int64s": [0, 1, 3, 1], "zeros": 1}),
    "labels": (
        "LabelEncoder",
        {"keys_floats": [1.0, 2.0, float("nan")], "values_floats": [10.0, 20.0, 30.0], "default_float": -1.0},
    ),
    "regressor": ("LinearRegressor", {"coefficients": [1.0, 2.0, 3.0, -1.0], "intercepts": [0.5], "targets": 1}),
    "several": (
        "LinearRegressor",
        {"coefficients": [float(each) for each in range(12)], "intercepts": [0.5, 1.0, 2.0], "targets": 3},
    ),
}


def numbers(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    found = np.where(
        rng.random((count, COLUMNS)) < 0.5, rng.integers(-1, 4, (count, COLUMNS)), rng.normal(size=(count, COLUMNS))
    )
    return np.asarray(found, np.float32)


@pytest.mark.parametrize("name", NODES)
def test_operators(name: str) -> None:
    op_type, attributes = NODES[name]
    node = helper.make_node(op_type, ["X"], ["Y"], domain="ai.onnx.ml", **attributes)
    model = model_of([node], [floats("X", None, COLUMNS)], [floats("Y", None, None)])
    if op_type == "OneHotEncoder":
        model.graph.output[0].type.tensor_type.shape.dim.add()
    x = numbers(300)
    if name == "one hot":
        x = np.abs(x)
    if "NaN" in name or name == "labels":
        x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    alike(model, {"X": x}, atol=1e-5)


def test_float32_that_is_cast_to_float64_and_chosen_from() -> None:
    """Columns of float32 stand for values of float64 until somebody computes with them."""
    nodes = [
        helper.make_node("Scaler", ["X"], ["scaled"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0]),
        helper.make_node("Cast", ["scaled"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("IsNaN", ["X"], ["missing"]),
        helper.make_node("Where", ["missing", "number", "wide"], ["Y"]),
    ]
    number = numpy_helper.from_array(np.array([7.0]), "number")
    model = model_of(
        nodes, [floats("X", None, COLUMNS)], [floats("Y", None, COLUMNS, kind=TensorProto.DOUBLE)], [number]
    )
    x = numbers(300)
    x[::3, 1] = np.nan
    alike(model, {"X": x})


def test_texts() -> None:
    """Categories of texts, some of them never seen, and labels of texts."""
    kind = TensorProto.STRING
    nodes = [
        helper.make_node("OneHotEncoder", ["X"], ["hot"], domain="ai.onnx.ml", cats_strings=["a", "b", "é"], zeros=1),
        helper.make_node("Flatten", ["hot"], ["flat"]),
        helper.make_node("ArgMax", ["flat"], ["place"], axis=1, keepdims=0),
        helper.make_node(
            "LabelEncoder",
            ["place"],
            ["Y"],
            domain="ai.onnx.ml",
            keys_int64s=[0, 1],
            values_strings=["first", "second"],
            default_string="another",
        ),
    ]
    model = model_of(nodes, [floats("X", None, 2, kind=kind)], [floats("flat", None, 6), floats("Y", None, kind=kind)])
    x = np.random.default_rng(0).choice(np.array(["a", "b", "é", "never", ""], object), (200, 2))
    alike(model, {"X": x})


def test_operators_that_it_does_not_take_stay_with_onnx_runtime() -> None:
    """Something strange after the trees, or before them."""
    model = trees()
    model.graph.node.append(helper.make_node("Erf", ["probabilities"], ["odd"]))
    model.graph.output.append(floats("odd", None, 3))
    alike(model, {"X": numbers(100)})
    model = trees()
    model.graph.node.insert(0, helper.make_node("Erf", ["X"], ["odd"]))
    model.graph.node[1].input[0] = "odd"
    alike(model, {"X": numbers(100)})
    lonely = model_of([helper.make_node("Erf", ["X"], ["Y"])], [floats("X", None, 2)], [floats("Y", None, 2)])
    with pytest.raises(UnsupportedError):
        Tables().session(lonely.SerializeToString(), BuildOptions(threads=1))


def test_a_compile(tmp_path: Path) -> None:
    """The module runs on the kernels, also after it was saved, and keeps NaN and infinities without a scan."""
    model = trees(count=60)
    about: dict[str, Any] = {
        "backends": ["tables", "onnxruntime"],
        "db": tmp_path / "db",
        "progress": False,
        "quick": True,
        "budget_s": 300.0,
    }
    module = collage.compile(model, **about)
    assert [region["backend"] for region in module.placement] == ["tables"]
    module.save(tmp_path / "trees.collage")
    loaded = collage.load(tmp_path / "trees.collage")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    x = numbers(500)
    x[::7, 0], x[::5, 1] = np.nan, np.inf
    for count in (1, 500):
        call = loaded.bind({"X": x[:count]})
        call()
        for found in (module(x[:count]), loaded(x[:count]), [*call.outputs.values()]):
            for own, other in zip(found, session.run(None, {"X": x[:count]}), strict=True):
                np.testing.assert_allclose(own, other, rtol=1e-5)


def test_a_fixed_batch(tmp_path: Path) -> None:
    """With a batch the model is divided, and the operator is an offer among others."""
    about: dict[str, Any] = {
        "backends": ["tables", "onnxruntime"],
        "db": tmp_path / "db",
        "progress": False,
        "quick": True,
        "budget_s": 300.0,
    }
    model = trees(count=60)
    module = collage.compile(model, batch=3, **about)
    x = numbers(3)
    for own, other in zip(
        module(x), onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"X": x}), strict=True
    ):
        np.testing.assert_allclose(own, other, rtol=1e-5)
