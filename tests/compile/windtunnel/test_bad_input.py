"""Each mistake is one line that says what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("pandas")
pytest.importorskip("lightgbm")

from lightgbm import LGBMRegressor
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PowerTransformer, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from collage.errors import CollageError, InputError, ModelError, UsageError
from collage.frontend.trees.described import describe
from collage.windtunnel import Tunnel, translate
from collage.windtunnel.modules.trees import Forest
from tests.helpers.windtunnel import boosted, fitted, halves, labels, pipeline, table


def refused(kind: type[CollageError], words: str, call: Any, *given: Any, **named: Any) -> None:
    with pytest.raises(kind, match=words) as caught:
        call(*given, **named)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def linear(**settings: Any) -> Any:
    encoder = OneHotEncoder(sparse_output=False, **settings)
    made = pipeline(LogisticRegression(max_iter=999), numbers=SimpleImputer(), categories=encoder)
    return translate(made.fit(table(), labels()))


def test_pipelines() -> None:
    refused(ModelError, "not fitted", translate, make_pipeline(StandardScaler(), LogisticRegression()))
    refused(ModelError, "not fitted", translate, boosted())
    refused(ModelError, "int is none", translate, 5)
    refused(ModelError, r"LGBMRegressor is a class: LGBMRegressor\(\)", translate, LGBMRegressor)
    rows, y = table()[["b", "d"]], labels()
    neighbours = make_pipeline(StandardScaler(), KNeighborsClassifier()).fit(rows, y)
    refused(
        ModelError, r"kneighborsclassifier.*no converter.*register_converter.*LGBMClassifier", translate, neighbours
    )
    behind = make_pipeline(StandardScaler(), PowerTransformer(), LogisticRegression()).fit(rows, y)
    refused(ModelError, r"powertransformer.*stay in front, untrained: front=", translate, behind)
    refused(ModelError, "powertransformer", translate, behind, front=("powertransformer",))
    refused(UsageError, "front names nothing.*lgbmclassifier", translate, fitted(True), front=("nothing",))
    refused(ModelError, "one class", translate, DecisionTreeClassifier().fit(rows, np.zeros(len(rows))))
    refused(ModelError, "no converter", translate, DummyClassifier().fit(rows, y))
    refused(ModelError, "not fitted", Tunnel(fitted()).predict_proba, rows)


def test_rows() -> None:
    tunnel = linear(handle_unknown="error")
    rows = table()
    refused(InputError, "column b is missing; the frame has a, c, d", tunnel.predict, rows[["a", "c", "d"]])
    refused(InputError, "b has to hold numbers", tunnel.predict, rows.assign(b="text"))
    refused(InputError, "c has the unseen category new", tunnel.predict, rows.assign(c="new"))
    refused(InputError, "d is .*categories were numbers", tunnel.predict, rows.assign(d="new"))
    refused(InputError, "b has an infinite number", tunnel.predict, rows.assign(b=np.inf))
    refused(InputError, r"shape \[900\]", tunnel.predict, rows.a.to_numpy())
    refused(InputError, "Series", tunnel.predict, rows.a)
    refused(InputError, "by their names: give a frame", tunnel.predict, rows.to_numpy())
    scaled = translate(make_pipeline(StandardScaler(), LogisticRegression()).fit(rows[["b", "d"]], labels()))
    refused(InputError, "3 columns, and the pipeline takes 2", scaled.predict, rows[["b", "b", "d"]].to_numpy())
    np.testing.assert_array_equal(scaled.predict(rows[["b", "d"]].to_numpy()), scaled.predict(rows))
    refused(InputError, "b has NaN", scaled.predict, rows.assign(b=np.nan))


def test_trees_that_are_none() -> None:
    booster = describe(boosted().fit(table()[["b", "d"]].to_numpy(), labels())).booster
    trees = booster.trees
    cycle, far = trees.true.copy(), trees.true.copy()
    cycle[trees.roots[0]], far[trees.roots[0]] = trees.roots[0], -len(trees.leaves) - 2
    refused(ModelError, "cycle", Forest.of, replace(booster, trees=replace(trees, true=cycle)))
    refused(ModelError, "out of range", Forest.of, replace(booster, trees=replace(trees, true=far)))


def test_tuning(tmp_path: Path) -> None:
    train, y, apart, of_apart = halves()
    tunnel = translate(fitted())
    tune = tunnel.fine_tune
    refused(InputError, "training data has no row of class 1", tune, train, y * 0, validation=(apart, of_apart))
    refused(InputError, "validation data has no row of class 0", tune, train, y, validation=(apart, of_apart * 0 + 1))
    refused(InputError, "the class 7, and the pipeline knows 0, 1", tune, train, y + 7)
    refused(InputError, "the class '1', and the pipeline knows 0, 1", tune, train, np.full(len(y), "1"))
    refused(InputError, "numbers to regress, and the pipeline is a classifier", tune, train, y + 0.5)
    texts = translate(boosted().fit(train[["b", "d"]], y.astype(str)))
    refused(InputError, "the class 0, and the pipeline knows '0', '1'", texts.fine_tune, train[["b", "d"]], y)
    refused(InputError, "600 rows, and 5 values", tune, train, y[:5])
    refused(InputError, "no rows", tune, train[:0], y[:0])
    refused(UsageError, "unknown level: L9", tune, train, y, level="L9")
    refused(UsageError, "unknown settings: speed.*rate", tune, train, y, speed=3)
    refused(UsageError, "rates, tau and tau_leaf are numbers above 0, and 0.0", tune, train, y, tau=0.0)
    refused(UsageError, "between 0 and 1", tune, train, y, validation=2.0)
    refused(UsageError, "start='current'", tune, train, y, start="current")
    pytest.importorskip("pyarrow")
    refused(InputError, "cannot read", tune, tmp_path / "none", "y")
    train.to_parquet(tmp_path / "rows")
    refused(InputError, "no column y", tune, tmp_path / "rows", "y")
    refused(UsageError, "name the column", tune, tmp_path / "rows", y)
    refused(UsageError, "transformer", translate(StandardScaler().fit(train[["b"]])).fine_tune, train[["b"]], y)


def test_what_to_predict() -> None:
    train, y, apart, _ = halves()
    tune = translate(fitted()).fine_tune
    for wrong in (None, "y"):
        refused(InputError, "training data: give the values", tune, train, wrong)
    refused(InputError, "has 1 rows without a value to predict", tune, train, np.where(np.arange(len(y)) == 5, None, y))
    refused(InputError, "has 2 columns to predict", tune, train, np.stack([y, y], 1))
    for wrong in ("v.parquet", apart, (apart,)):
        refused(UsageError, "validation is", tune, train, y, validation=wrong)
    refused(InputError, "y is None", Tunnel(boosted()).fit, train, None)
    refused(UsageError, "fitted with a pipeline", Tunnel(3).fit, train, y)
    refused(InputError, "list has the shape", tune, [1, 2], y)
    refused(InputError, "rows are a frame", tune, [[1, 2], [3]], y)
    for wrong, words in (
        (y[:5] + 1, "5 weights"),
        (y * 0, "all of"),
        (y - 5.0, "from 0 on"),
        (["x"] * len(y), "numbers"),
    ):
        refused(InputError, words, tune, train, y, sample_weight=wrong)
    refused(UsageError, "KNeighborsClassifier takes no", Tunnel(KNeighborsClassifier()).fit, train[["b"]], y, y + 1)
    counts = LGBMRegressor(objective="poisson", n_estimators=2, verbose=-1).fit(train[["b", "d"]], y)
    refused(InputError, "negative value", translate(counts).fine_tune, train[["b", "d"]], y - 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": -5},
        {"epochs": "3"},
        {"epochs": 1.5},
        {"leaf_rate": -1.0},
        {"encoder_rate": "a"},
        {"memory": -5},
        {"tau": (1,)},
        {"seed": -1},
        {"decay": -1},
        {"rate": "x"},
        {"rate": float("nan")},
    ],
)
def test_settings(settings: dict[str, Any]) -> None:
    train, y, _, _ = halves()
    refused(UsageError, next(iter(settings)).split("_")[-1], translate(fitted()).fine_tune, train, y, **settings)


def test_columns_of_categories_and_tokenisers_by_themselves() -> None:
    frame = table()[["b"]].assign(c=table().c.astype("category"))
    refused(ModelError, "OrdinalEncoder before it", translate, boosted().fit(frame, labels()))
    text = make_pipeline(CountVectorizer(), LogisticRegression()).fit(table().c + " day", labels())
    refused(ModelError, "in a ColumnTransformer", translate, text)
    refused(UsageError, r"such as \['pre'\]", translate, text, front="pre")


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    tunnel = translate(fitted())
    refused(InputError, "cannot write", tunnel.save, tmp_path / "none" / "a.tunnel")
    refused(InputError, "cannot write", tunnel.to_onnx, tmp_path / "none" / "a.onnx")


def test_texts_where_categories_were_numbers_are_unseen() -> None:
    made = pipeline(LogisticRegression(max_iter=999), numbers=SimpleImputer()).fit(table(), labels())
    rows = table().assign(d="new")
    np.testing.assert_allclose(translate(made).predict_proba(rows), made.predict_proba(rows), atol=1e-9)
    refused(InputError, "c is .*categories were text", translate(made).predict, table().assign(c=1))
