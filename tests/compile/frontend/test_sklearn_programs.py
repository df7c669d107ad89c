"""Programs as scikit-learn's documentation writes them: only a line makes a compiled module of the fitted estimator."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collage
from collage.errors import UsageError

pytest.importorskip("sklearn")
pytest.importorskip("skl2onnx")


@pytest.fixture
def compile(tmp_path: Path) -> Any:
    return partial(collage.compile, budget_s=2, db=tmp_path / "db.sqlite", progress=False)


def test_getting_started(compile: Any) -> None:
    """Of "Getting Started": pipelines, chaining pre-processors and estimators."""
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # create a pipeline object
    pipe = make_pipeline(StandardScaler(), LogisticRegression())

    # load the iris dataset and split it into train and test sets
    X, y = load_iris(return_X_y=True)  # noqa: N806
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)  # noqa: N806

    # fit the whole pipeline
    pipe.fit(X_train, y_train)

    # we can now use it like any other estimator
    module = compile(pipe)
    assert accuracy_score(module.predict(X_test), y_test) == accuracy_score(pipe.predict(X_test), y_test)
    np.testing.assert_allclose(module.predict_proba(X_test), pipe.predict_proba(X_test), atol=1e-5)
    for row in X_test[:5]:
        np.testing.assert_array_equal(module.predict([row]), pipe.predict([row]))


def test_column_transformer_with_mixed_types(compile: Any) -> None:
    """Of the example "Column Transformer with Mixed Types", on passengers that are made up."""
    pd = pytest.importorskip("pandas")
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    X = pd.DataFrame(  # noqa: N806
        {
            "age": np.where(rng.random(300) < 0.1, np.nan, rng.integers(1, 80, 300)),
            "fare": rng.gamma(2, 16, 300),
            "embarked": rng.choice(["S", "C", "Q"], 300),
            "sex": rng.choice(["female", "male"], 300),
        }
    )
    y = (X["sex"] == "female") ^ (rng.random(300) < 0.2)

    numeric_features = ["age", "fare"]
    numeric_transformer = Pipeline(steps=[("imputer", SimpleImputer(strategy="median")), ("scaler", StandardScaler())])
    categorical_features = ["embarked", "sex"]
    categorical_transformer = OneHotEncoder(handle_unknown="ignore")
    preprocessor = ColumnTransformer(
        transformers=[
            ("num", numeric_transformer, numeric_features),
            ("cat", categorical_transformer, categorical_features),
        ]
    )
    clf = Pipeline(steps=[("preprocessor", preprocessor), ("classifier", RandomForestClassifier(50, random_state=0))])
    clf.fit(X[:200], y[:200])

    module = compile(clf)
    np.testing.assert_array_equal(module.predict(X[200:]), clf.predict(X[200:]))
    np.testing.assert_allclose(module.predict_proba(X[200:]), clf.predict_proba(X[200:]), atol=1e-5)


def test_gradient_boosting_regression(compile: Any) -> None:
    """Of the example "Gradient Boosting regression"."""
    from sklearn import datasets, ensemble
    from sklearn.metrics import mean_squared_error
    from sklearn.model_selection import train_test_split

    diabetes = datasets.load_diabetes()
    X, y = diabetes.data, diabetes.target  # noqa: N806
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.1, random_state=13)  # noqa: N806
    params = {"n_estimators": 500, "max_depth": 4, "min_samples_split": 5, "learning_rate": 0.01}
    reg = ensemble.GradientBoostingRegressor(loss="squared_error", random_state=0, **params)
    reg.fit(X_train, y_train)

    module = compile(reg)
    mse = mean_squared_error(y_test, module.predict(X_test))
    assert mse == pytest.approx(mean_squared_error(y_test, reg.predict(X_test)), rel=1e-5)
    np.testing.assert_allclose(module.predict(X_test), reg.predict(X_test), rtol=1e-5)


def test_an_estimator_needs_no_example(compile: Any) -> None:
    from sklearn.linear_model import LinearRegression

    X = np.arange(12.0).reshape(6, 2)  # noqa: N806
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = LinearRegression().fit(X, X[:, 0])
    with pytest.raises(
        UsageError, match=r"an example is for modules and programs of PyTorch\. Models of ONNX, and fitted"
    ):
        compile(fitted, X)
    np.testing.assert_allclose(compile(fitted).predict(X), X[:, 0], atol=1e-4)


def test_clusters(compile: Any) -> None:
    """Of "Clustering": k-means, which predicts the nearest cluster, also at the end of a pipeline."""
    from sklearn.cluster import KMeans
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)  # noqa: N806
    for estimator in (KMeans(n_clusters=3, n_init=1), make_pipeline(StandardScaler(), KMeans(3, n_init=1))):
        kmeans = estimator.fit(X)
        module = compile(kmeans)
        for count in (1, 7, 60):
            found, wanted = module.predict(X[:count]), kmeans.predict(X[:count])
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype


def test_what_is_placed_for_one_row_predicts_too(compile: Any) -> None:
    """Nearest neighbours have operators of which nothing is known: they are placed for one row."""
    from sklearn.neighbors import KNeighborsClassifier

    X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)  # noqa: N806
    neighbours = KNeighborsClassifier(3).fit(X, np.where(X[:, 0] > 0, "aa", "b"))
    module = compile(neighbours)
    np.testing.assert_array_equal(module.predict(X), neighbours.predict(X))
    np.testing.assert_allclose(module.predict_proba(X), neighbours.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("dtype", ["U3", "object", "int32", "uint8", "bool", "float32"])
def test_labels_have_the_dtype_of_the_classes(compile: Any, dtype: str, tmp_path: Path) -> None:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)  # noqa: N806
    y = (X[:, 0] > 0).astype(np.int64)
    y = np.array(["b", "aaa"])[y].astype(dtype) if dtype in ("U3", "object") else y.astype(dtype)
    for estimator in (LogisticRegression(), RandomForestClassifier(3)):
        classifier = estimator.fit(X, y)
        module = compile(classifier)
        module.save(tmp_path / "labels.collage")
        for each in (module, collage.load(tmp_path / "labels.collage")):
            found, wanted = each.predict(X), classifier.predict(X)
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype
            assert each.predict(X[:1]).dtype == wanted.dtype
