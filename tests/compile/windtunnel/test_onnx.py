"""The ONNX models of tunnels give what PyTorch gives, with gathers for categories, and trees at L1."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("pandas")
pytest.importorskip("lightgbm")

from onnx import TensorProto
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler

from collage.backends.tables import Tables
from collage.backends.tables_kernels.session import TableSession
from collage.errors import ModelError
from collage.kernel.options import BuildOptions
from collage.native.table import table_problem
from collage.windtunnel import graph, translate
from tests.compile.windtunnel.test_translate import CLASSIFIERS, imputed
from tests.helpers.windtunnel import ROWS, boosted, fitted, halves, labels, pipeline, strange, table

_DTYPES = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64, TensorProto.STRING: object}


def run(model: Any, rows: Any) -> dict[str, Any]:
    """The outputs by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    given = dict(zip([each.name for each in model.graph.input], feeds(model, rows), strict=True))
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, given), strict=True))


def feeds(model: Any, rows: Any) -> list[Any]:
    """An array for each input."""
    dtypes = {each.name: _DTYPES[each.type.tensor_type.elem_type] for each in model.graph.input}
    return [(rows if name == "X" else rows[[name]].to_numpy()).astype(dtype) for name, dtype in dtypes.items()]


def kinds(model: Any) -> list[str]:
    return [node.op_type for node in model.graph.node]


def check(tunnel: Any, rows: Any) -> Any:
    model = tunnel.to_onnx()
    for some in (rows, rows[:1]):
        found = run(model, some)
        np.testing.assert_array_equal(found["label"], tunnel.predict(some))
        if hasattr(tunnel, "predict_proba"):
            np.testing.assert_allclose(found["probabilities"], tunnel.predict_proba(some), rtol=0, atol=1e-5)
        else:
            np.testing.assert_allclose(found["scores"], tunnel.decision_function(some), rtol=0, atol=1e-5)
    return model


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("classes", [2, 3])
def test_hard_networks(name: str, classes: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of categories that fold, and of names
        source = CLASSIFIERS[name]().fit(table(), labels(classes))
        check(translate(source), strange())


TREES = ["lightgbm", "xgboost", "catboost", "boosting", "target", *(name for name in CLASSIFIERS if "," in name)]
"""Those with a comma have sets of categories, or other numbers than NaN that mean missing."""


@pytest.mark.parametrize("name", [*TREES, "logistic", "buckets", "indicators", "selections"])
@pytest.mark.parametrize("level", ["L1", "L2", "L3", "L4"])
def test_tuned_networks(name: str, level: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = CLASSIFIERS[name]().fit(table(), labels())
        found = translate(source).fine_tune(
            table(), labels(), validation=0.3, level=level, epochs=1, batch=128, keep_source=False
        )
        model = check(found, strange())
    assert ("TreeEnsemble" in kinds(model)) == (name in TREES and level == "L1")
    if name in TREES:
        runs_on_our_kernels(model, found)


def runs_on_our_kernels(model: Any, tunnel: Any, frame: Any = None) -> None:
    """All of the model is one program of the backend for tables, if this processor has its kernels."""
    if table_problem():
        return
    session = Tables().session(model.SerializeToString(), BuildOptions(threads=2))
    assert isinstance(session, TableSession)
    names = [each.name for each in model.graph.output]
    frame = strange() if frame is None else frame
    for rows in (frame, frame[:1]):
        found = dict(zip(names, session.run(feeds(model, rows)), strict=True))
        np.testing.assert_array_equal(found["label"], tunnel.predict(rows))
        np.testing.assert_allclose(found["probabilities"], tunnel.predict_proba(rows), rtol=0, atol=1e-5)


def test_categories_are_gathers() -> None:
    """No one-hot code is made: the tables of a linear operator have its weights in them already."""
    source = pipeline(LogisticRegression(max_iter=500), numbers=imputed()).fit(table(), labels())
    found = translate(source).fine_tune(table(), labels(), validation=0.3, epochs=1, keep_source=False)
    model = check(found, strange())
    assert kinds(model).count("Gather") == 2
    assert "OneHot" not in kinds(model)
    of_gathers = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    shapes = [list(each.dims) for each in model.graph.initializer if each.name in of_gathers]
    assert sorted(shapes) == [[7, 1], [31, 1]]


def test_wide_one_hot_codes_before_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "WIDEST_TABLE", 6)
    source = pipeline(boosted()).fit(table(), labels())
    check(translate(source), strange())
    check(translate(source).fine_tune(table(), labels(), validation=0.3, epochs=1, keep_source=False), strange())


def test_missing_texts_and_infinite_numbers() -> None:
    train, y, apart, of_apart = halves()
    found = translate(fitted()).fine_tune(train, y, validation=(apart, of_apart), epochs=1, keep_source=False)
    rows = strange()
    rows.loc[:5, "a"] = np.inf
    rows.loc[5:9, "a"] = -np.inf
    assert np.isfinite(found.predict_proba(rows)).all()
    check(found, rows)


def test_arrays_are_one_input() -> None:
    rows = table()[["b", "d"]].to_numpy(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = check(translate(boosted().fit(rows, labels())), rows)
    assert [each.name for each in model.graph.input] == ["X"]


def test_soft_sets_of_many_categories_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage.windtunnel.modules.trees.LARGEST_TABLE", 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = CLASSIFIERS["lightgbm, categories"]().fit(table(), labels())
        found = translate(source).fine_tune(table(), labels(), validation=0.3, epochs=1, keep_source=False)
    with pytest.raises(ModelError, match="L1"):
        found.to_onnx()


def test_infinite_numbers_at_l2_change_no_other_node() -> None:
    train, y, apart, of_apart = halves()
    model = (
        translate(fitted())
        .fine_tune(train, y, validation=(apart, of_apart), epochs=1, level="L2", keep_source=False)
        .to_onnx()
    )
    rows = strange()
    rows.loc[:5, "a"], rows.loc[5:9, "a"] = np.inf, -np.inf
    expected = run(model, rows)["probabilities"]
    assert np.isfinite(expected).all()
    if not table_problem():
        found = Tables().session(model.SerializeToString(), BuildOptions(threads=1)).run(feeds(model, rows))
        np.testing.assert_allclose(found[1], expected, rtol=0, atol=1e-5)


def test_missing_texts_are_empty_ones() -> None:
    """ONNX has no missing texts."""
    frame = table()[["b", "c"]].copy()
    frame.loc[::7, "c"] = None
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["c"]), (StandardScaler(), ["b"]))
    source = make_pipeline(columns, LogisticRegression()).fit(frame, labels())
    found = run(translate(source).to_onnx(), frame.fillna({"c": ""}))
    np.testing.assert_allclose(found["probabilities"], source.predict_proba(frame), rtol=0, atol=1e-6)


@pytest.mark.parametrize("level", ["L2", "L3", "L4"])
@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler(), None])
def test_large_numbers_of_a_small_spread(level: str, scaler: Any) -> None:
    """Seconds of one day, and latitudes of one town, have no digits left in float32."""
    random = np.random.default_rng(0)
    rows = table()[["b", "d"]].assign(at=1.7e9 + random.uniform(0, 3600, ROWS), lat=52.5 + random.normal(0, 1e-6, ROWS))
    y = (rows["at"] - 1.7e9) / 1800 + (rows["lat"] - 52.5) * 1e6 > 1
    source = make_pipeline(scaler, boosted()).fit(rows, y)
    found = translate(source).soften(rows, level=level)
    assert np.mean(found.predict(rows) == source.predict(rows)) > 0.95
    model = check(found, rows)
    types = [each.type.tensor_type.elem_type for each in (*model.graph.input, model.graph.output[1])]
    assert types == [TensorProto.DOUBLE] * 4 + [TensorProto.FLOAT]
    runs_on_our_kernels(model, found, rows)
    moved = rows.assign(at=rows["at"] + 20)
    assert np.abs(found.predict_proba(moved) - found.predict_proba(rows)).max() > 0.05


@pytest.mark.parametrize("of_classes", [True, False])
def test_names_of_columns_that_outputs_and_inner_values_have(of_classes: bool) -> None:
    frame = table()[["b", "d", "d", "b", "d"]]
    frame.columns = ["label", "label_", "prediction", "probabilities", "constant_0"]
    source = make_pipeline(StandardScaler(), LogisticRegression() if of_classes else Ridge()).fit(frame, labels())
    tunnel = translate(source)
    model = tunnel.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    assert [each.name for each in model.graph.input] == list(frame)
    names = {each.key: each.value for each in model.metadata_props}
    found = run(model, frame)
    np.testing.assert_allclose(found[names["collage.predict"]], tunnel.predict(frame), atol=1e-6)
    if of_classes:
        assert names["collage.predict"] == "label__"
        np.testing.assert_allclose(found[names["collage.predict_proba"]], tunnel.predict_proba(frame), atol=1e-6)


@pytest.mark.parametrize("level", ["L1", "L2", "L3", "L4"])
def test_encoders_that_give_missing_numbers(level: str) -> None:
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    source = pipeline(boosted(), categories=encoder).fit(table(), labels())
    found = translate(source).soften(table(), level=level)
    assert np.isfinite(found.predict_proba(strange())).all()
    runs_on_our_kernels(check(found, strange()), found)
