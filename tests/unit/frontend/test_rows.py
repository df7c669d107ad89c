"""Models of tables: which of them take any number of rows, and the rows that they are measured on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.errors import UsageError
from collage.frontend.random_rows import random_rows
from collage.frontend.read.rows import column_names, predictions, take_rows
from collage.frontend.read.shapes import with_batch
from collage.frontend.read.value_types import value_type
from tests.helpers.tables import COLUMNS, floats, model_of, pipeline, trees

ML = {"domain": "ai.onnx.ml"}


def after(*nodes: onnx.NodeProto, **constants: Any) -> onnx.ModelProto:
    """A Scaler of x (rows x 4) to s, and nodes after it that make y."""
    scaler = helper.make_node("Scaler", ["x"], ["s"], "scale", offset=[0.0], scale=[2.0], **ML)
    tensors = [numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items()]
    return model_of([scaler, *nodes], [floats("x", None, 4)], [floats("y", None)], tensors)


def node(op: str, inputs: str, **about: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), ["y"], op.lower(), **about)


def shapes(model: onnx.ModelProto) -> list[Any]:
    """The shapes of the outputs, or nothing for a model that does not take any number of rows."""
    return [value_type(info.type).shape for info in model.graph.output] if take_rows(model) else []


def test_trees_and_pipelines() -> None:
    assert shapes(trees()) == [(None,), (None, 3)]
    assert shapes(trees("N", texts=True)) == [(None,), (None, 3)]
    assert shapes(trees(zipmap=True)) == [(None,), None]
    assert shapes(pipeline()) == [(None, 1)]


def test_a_wrong_declaration_of_an_output_is_mended() -> None:
    """As some exporters write it."""
    model = trees()
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    assert shapes(model)[0] == (None,)


@pytest.mark.parametrize(
    ("nodes", "constants", "shape"),
    [
        ([node("Concat", "s x", axis=-1)], {}, (None, 8)),
        ([node("Gather", "s i", axis=1)], {"i": [0, 2]}, (None, 2)),
        ([node("Gather", "s i", axis=1)], {"i": 1}, (None,)),
        ([node("ArrayFeatureExtractor", "s i", **ML)], {"i": [3, 1, 0]}, (None, 3)),
        ([node("Slice", "s a b c")], {"a": [1], "b": [9], "c": [1]}, (None, 3)),
        ([node("Reshape", "s r")], {"r": [-1, 2, 2]}, (None, 2, 2)),
        ([node("Reshape", "s r")], {"r": [0, 2, -1]}, (None, 2, 2)),
        ([node("Unsqueeze", "s a")], {"a": [-1]}, (None, 4, 1)),
        ([node("Flatten", "s")], {}, (None, 4)),
        ([node("Add", "s c")], {"c": np.ones((1, 4), np.float32)}, (None, 4)),
        ([node("Mul", "c s")], {"c": np.ones(4, np.float32)}, (None, 4)),
        ([node("Div", "s x")], {}, (None, 4)),
        ([node("MatMul", "s w")], {"w": np.ones((4, 5), np.float32)}, (None, 5)),
        ([node("Gemm", "s w b", transB=1)], {"w": np.ones((5, 4), np.float32), "b": np.ones(5, np.float32)}, (None, 5)),
        ([node("ReduceSum", "s a", keepdims=0)], {"a": [1]}, (None,)),
        ([node("ArgMax", "s", axis=-1)], {}, (None, 1)),
        ([node("TopK", "s k", axis=1)], {"k": [2]}, (None, 2)),
        ([node("Softmax", "s", axis=1)], {}, (None, 4)),
        ([node("Clip", "s a b")], {"a": np.float32(0), "b": np.float32(1)}, (None, 4)),
    ],
)
def test_operators_along_the_columns(nodes: Sequence[onnx.NodeProto], constants: Any, shape: Any) -> None:
    assert shapes(after(*nodes, **constants)) == [shape]


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Concat", "s x", axis=0)], {}),
        ([node("Gather", "s i", axis=0)], {"i": [0]}),
        ([node("Slice", "s a b c")], {"a": [0], "b": [1], "c": [0]}),
        ([node("Reshape", "s r")], {"r": [-1, 2]}),
        ([node("Reshape", "s r")], {"r": [2, -1]}),
        ([node("Unsqueeze", "s a")], {"a": [0]}),
        ([node("Squeeze", "s")], {}),
        ([node("Flatten", "s", axis=0)], {}),
        ([node("Transpose", "s")], {}),
        ([node("Add", "s c")], {"c": np.ones((3, 4), np.float32)}),
        ([node("Add", "s c")], {"c": np.ones((1, 1, 4), np.float32)}),
        ([node("MatMul", "s s")], {}),
        ([node("MatMul", "w s")], {"w": np.ones((4, 4), np.float32)}),
        ([node("Gemm", "s w", transA=1)], {"w": np.ones((4, 5), np.float32)}),
        ([node("ReduceSum", "s")], {}),
        ([node("ReduceMax", "s", axes=[0])], {}),
        ([node("ArgMax", "s")], {}),
        ([node("Softmax", "s", axis=0)], {}),
        ([node("CumSum", "s a")], {"a": 0}),
        ([node("Normalizer", "s", norm="L2", domain="com.example")], {}),
        ([node("Reshape", "x r")], {"r": [-1]}),
    ],
)
def test_what_may_mix_rows(nodes: Sequence[onnx.NodeProto], constants: Any) -> None:
    model = after(*nodes, **constants)
    before = model.SerializeToString()
    assert not shapes(model)
    assert model.SerializeToString() == before


WIDE = np.ones((2, 2, 3), np.float32)


@pytest.mark.parametrize(
    ("nodes", "constants", "shape"),
    [
        ([node("Transpose", "t", perm=[1, 0, 2])], {}, (None, 2, 2)),
        ([node("Transpose", "t", perm=[1, 2, 0])], {}, (None, 2, 2)),
        ([node("ReduceSum", "t a", keepdims=0)], {"a": [0]}, (None, 2)),
        ([node("ReduceSum", "t a", keepdims=0)], {"a": [-3, 2]}, (None,)),
        (
            [helper.make_node("MatMul", ["t", "w"], ["p"]), node("Transpose", "p", perm=[1, 0, 2])],
            {"w": WIDE},
            (None, 2, 3),
        ),
        ([helper.make_node("Tanh", ["t"], ["p"]), node("Transpose", "p", perm=[1, 0, 2])], {}, (None, 2, 2)),
        (
            [helper.make_node("Add", ["t", "c"], ["p"]), node("ReduceMax", "p", axes=[0], keepdims=0)],
            {"c": np.ones((2, 1, 2), np.float32)},
            (None, 2),
        ),
        # These do not put the axis of the rows first again, or mix rows.
        ([node("Tanh", "t")], {}, None),
        ([node("ReduceSum", "t a")], {"a": [0]}, None),
        ([node("ReduceSum", "t a", keepdims=0)], {"a": [1]}, None),
        ([node("ReduceSum", "t a", keepdims=0)], {"a": [-2]}, None),
        ([helper.make_node("Softmax", ["t"], ["p"], axis=1), node("Transpose", "p", perm=[1, 0, 2])], {}, None),
        (
            [helper.make_node("Add", ["t", "c"], ["p"]), node("Transpose", "p", perm=[1, 0, 2])],
            {"c": np.ones((2, 3, 2), np.float32)},
            None,
        ),
        ([helper.make_node("Add", ["t", "u"], ["p"]), node("Transpose", "p", perm=[1, 0, 2])], {}, None),
        ([helper.make_node("MatMul", ["u", "w"], ["p"]), node("Transpose", "p", perm=[0, 1, 2])], {"w": WIDE}, None),
        ([helper.make_node("MatMul", ["t", "u"], ["p"]), node("Transpose", "p", perm=[1, 0, 2])], {}, None),
        ([node("Reshape", "t r")], {"r": [-1, 4]}, None),
        ([node("Transpose", "t", perm=[1, 0])], {}, None),
    ],
)
def test_an_axis_before_the_rows(nodes: Sequence[onnx.NodeProto], constants: Any, shape: Any) -> None:
    """u is rows x 2 x 2, t is 2 x rows x 2: how batches of products take the rows."""
    first = [
        helper.make_node("Reshape", ["s", "r3"], ["u"]),
        helper.make_node("Transpose", ["u"], ["t"], perm=[1, 0, 2]),
    ]
    assert shapes(after(*first, *nodes, r3=[0, 2, 2], **constants)) == ([] if shape is None else [shape])


def test_labels_that_an_index_picks() -> None:
    """As skl2onnx writes them: the index of the largest score picks an element of a row of classes."""
    nodes = [
        helper.make_node("ArgMax", ["s"], ["best"], "best", axis=1),
        helper.make_node("ArrayFeatureExtractor", ["classes", "best"], ["lying"], "pick", **ML),
        helper.make_node("Cast", ["lying"], ["cast"], "cast", to=TensorProto.INT64),
        helper.make_node("Reshape", ["cast", "shape"], ["y"], "stand"),
    ]
    assert shapes(after(*nodes, classes=[[3, 4, 5, 6]], shape=[-1])) == [(None,)]
    assert not take_rows(after(*nodes[:2], node("Reshape", "lying shape"), classes=[[3, 4, 5, 6]], shape=[0, 1]))


def test_models_with_fixed_or_other_inputs_and_without_tables() -> None:
    assert not take_rows(trees(8))
    assert not take_rows(model_of([node("Relu", "x")], [floats("x", None, 4)], [floats("y", None, 4)]))
    plain = model_of([node("Relu", "x")], [floats("x", None, 4)], [floats("y", None, 4)])
    helper.set_model_props(plain, {"collage.kind": "regressor"})
    assert take_rows(plain)
    for open_shape in ((None, None), ()):
        model = trees()
        model.graph.input[0].CopyFrom(floats("X", *open_shape))
        assert not take_rows(model)
    model = trees()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert not take_rows(model)


@pytest.mark.parametrize("text", ["", "[1", "{}", '["a"]', json.dumps([0] * COLUMNS), json.dumps(["a"] * COLUMNS)])
def test_columns_without_right_names(text: str) -> None:
    model = trees()
    helper.set_model_props(model, {"collage.features": text})
    assert column_names(model) == ()


def test_names_of_columns() -> None:
    names = [f"feature {each}" for each in range(COLUMNS)]
    model = trees()
    assert column_names(model) == ()
    helper.set_model_props(model, {"collage.features": json.dumps(names)})
    assert column_names(model) == tuple(names)


def test_predictions_by_metadata_and_by_form() -> None:
    both = {"predict": "label", "predict_proba": "probabilities"}
    assert predictions(trees()) == predictions(trees(zipmap=True)) == both
    assert predictions(pipeline()) == {"predict": "y"}
    model = trees()
    helper.set_model_props(model, {"collage.predict": "probabilities", "collage.predict_proba": "nothing"})
    assert predictions(model) == {"predict": "probabilities"}


def test_rows_lie_on_both_sides_of_each_split() -> None:
    model = trees(spread=1e4)
    about = {each.name: helper.get_attribute_value(each) for each in model.graph.node[0].attribute}
    (table,) = random_rows(model, 1000, np.random.default_rng(0)).values()
    assert table.shape == (1000, COLUMNS) and table.dtype == np.float32
    for feature, split in zip(about["nodes_featureids"][::3], about["nodes_values"][::3], strict=True):
        above = np.mean(table[:, feature] > split)
        assert 0.1 < above < 0.9
        assert np.all(np.abs(table[:, feature] - split) > 1e-6 * abs(split))


def test_rows_of_texts_and_scaled_numbers() -> None:
    found = random_rows(pipeline(), 1000, np.random.default_rng(0))
    assert [*found] == ["age", "city"]
    assert set(found["city"].ravel()) == {"kiel", "oslo", "a category never seen"}
    assert 39 < np.mean(found["age"]) < 41 and 9 < np.std(found["age"]) < 11
    strict = pipeline()
    next(each for each in strict.graph.node[2].attribute if each.name == "zeros").i = 0
    assert set(random_rows(strict, 100, np.random.default_rng(0))["city"].ravel()) == {"kiel", "oslo"}


def test_rows_of_categories_and_missing_numbers() -> None:
    encoder = helper.make_node("OneHotEncoder", ["n"], ["y"], "hot", cats_int64s=[10, 20], zeros=1, **ML)
    model = model_of([encoder], [floats("n", None, kind=TensorProto.INT64)], [floats("y", None, 2)])
    (found,) = random_rows(model, 100, np.random.default_rng(0)).values()
    assert found.shape == (100,) and found.dtype == np.int64 and set(found) == {10, 20, 21}
    imputer = helper.make_node("Imputer", ["x"], ["y"], "full", replaced_value_float=float("nan"), **ML)
    model = model_of([imputer], [floats("x", None, 3)], [floats("y", None, 3)])
    (found,) = random_rows(model, 1000, np.random.default_rng(0)).values()
    assert 0 < np.isnan(found).mean() < 0.1


def test_a_batch_fixes_the_first_axis() -> None:
    model = model_of([], [floats("a", None, 4), floats("b", "N"), floats("c", None, None), floats("d", 2)], [])
    assert with_batch(model, {"b": [7]}, 5) == {"b": [7], "a": [5, 4]}
    assert value_type(model.graph.input[2].type).shape == (5, None)
    assert with_batch(model, {}, None) == {}
    for info in model.graph.input:
        info.type.tensor_type.shape.dim[0].dim_value = 5
    assert with_batch(model, {}, 5) == {}
    with pytest.raises(UsageError, match="cannot be 7: a has 5, b has 5"):
        with_batch(model, {}, 7)
