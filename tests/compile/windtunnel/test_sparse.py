"""XGBoost takes what a sparse matrix does not store for missing; and networks are compared with their pipelines."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("pandas")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")

import scipy.sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, MaxAbsScaler, OneHotEncoder, StandardScaler
from xgboost import XGBClassifier, XGBRegressor

from collage.errors import InputError, ModelError
from collage.windtunnel import load, translate
from tests.compile.windtunnel.test_onnx import check, runs_on_our_kernels
from tests.helpers.windtunnel import boosted, labels, strange, table


def trees(**settings: Any) -> Any:
    return XGBClassifier(n_estimators=6, max_depth=4, n_jobs=1, **settings)


def hot() -> Any:
    return OneHotEncoder(handle_unknown="ignore")


def imputed() -> Any:
    return make_pipeline(SimpleImputer(), StandardScaler())


def columns(**settings: Any) -> Any:
    return make_column_transformer((hot(), ["c", "d"]), (imputed(), ["a", "b"]), **settings)


def numbers() -> Any:
    return make_column_transformer((imputed(), ["a", "b"]))


PIPELINES = {
    "one-hot": lambda: make_pipeline(make_column_transformer((hot(), ["c", "d"])), trees()),
    "sparse by density": lambda: make_pipeline(columns(), trees()),
    "dense by density": lambda: make_pipeline(columns(sparse_threshold=0), trees()),
    "scaled": lambda: make_pipeline(columns(), MaxAbsScaler(), trees()),
    "a missing number, too": lambda: make_pipeline(columns(), trees(missing=1.0)),
    "union": lambda: make_pipeline(
        FeatureUnion([("c", make_column_transformer((hot(), ["c"]))), ("n", numbers())]), trees()
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_zeros_that_are_not_stored_are_missing(name: str) -> None:
    source = PIPELINES[name]().fit(table(), labels())
    found = translate(source)
    np.testing.assert_allclose(found.predict_proba(strange()), source.predict_proba(strange()), rtol=0, atol=1e-6)
    check(found, strange())
    for level in ("L1", "L2", "L3"):
        runs_on_our_kernels(check(found.soften(table(), level=level), strange()), found)


def test_sparse_outputs_in_front() -> None:
    frame = table().fillna(0).assign(text=np.where(labels() > 0, "good day", "bad night"))
    for step in (CountVectorizer(), "text"), (KBinsDiscretizer(quantile_method="averaged_inverted_cdf"), ["b"]):
        source = make_pipeline(ColumnTransformer([("t", *step)]), XGBRegressor(n_estimators=4)).fit(frame, labels())
        np.testing.assert_allclose(translate(source).predict(frame), source.predict(frame), rtol=0, atol=1e-6)


def test_sparse_rows(tmp_path: Path) -> None:
    rows = scipy.sparse.random(400, 12, 0.3, format="csr", random_state=0)
    rows.data[:40] = 0  # stored zeros are numbers
    source = trees().fit(rows, labels()[:400])
    found = translate(source)
    found.save(tmp_path / "a.tunnel")
    for tunnel in (found, load(tmp_path / "a.tunnel")):
        for some in (rows, rows.toarray()):
            np.testing.assert_allclose(tunnel.predict_proba(some), source.predict_proba(some), rtol=0, atol=1e-6)
    assert found.fine_tune(rows, labels()[:400], epochs=1).source_score_ is not None


class Own(TransformerMixin, BaseEstimator):
    """An operator of a user."""

    def fit(self, rows: Any, y: Any = None) -> Own:
        self.n_features_in_ = self._n_features_out = rows.shape[1]
        return self

    def transform(self, rows: Any) -> Any:
        return scipy.sparse.csr_matrix(rows)


def test_layouts_that_are_not_known() -> None:
    first = make_column_transformer((CountVectorizer(), "c"), sparse_threshold=1.0)
    frame = table()[["c"]].assign(c=table().c + "u day")
    source = make_pipeline(first, FunctionTransformer(lambda x: x, accept_sparse=True), trees()).fit(frame, labels())
    with pytest.raises(ModelError, match=r"xgbclassifier.*sparse_output"):
        translate(source)
    rows = table()[["b", "d"]].to_numpy(float)
    source = make_pipeline(Own(), trees()).fit(rows, labels())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it stays in front
        with pytest.raises(InputError, match=r"own gives a sparse matrix.*sparse_output=True"):
            translate(source).predict(rows)
        source[0].sparse_output = True
        np.testing.assert_allclose(translate(source).predict_proba(rows), source.predict_proba(rows), atol=1e-6)


def test_a_network_that_differs_from_its_pipeline() -> None:
    rows = table()[["b", "d"]]
    source = make_pipeline(StandardScaler(), boosted()).fit(rows, labels())
    found = translate(source)
    source[0].mean_ = source[0].mean_ + 1
    with pytest.raises(ModelError, match=r"other numbers than the pipeline on .* of 900 rows.*translate it again"):
        found.fine_tune(rows, labels(), epochs=1)
    translate(source).fine_tune(rows, labels(), epochs=1)
