"""scikit-learn's estimators and pipelines, with boosters inside of them, and joblib files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.errors import ModelError, UsageError
from collage.frontend.read.rows import take_rows
from collage.frontend.trees.files import read_model_file, recognise
from collage.frontend.trees.objects import from_object
from tests.slow.frontend.trees.compared import Array, assert_close, outputs

pytest.importorskip("skl2onnx")
joblib = pytest.importorskip("joblib")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
catboost = pytest.importorskip("catboost")
pandas = pytest.importorskip("pandas")

from sklearn import ensemble, linear_model, preprocessing  # noqa: E402
from sklearn.calibration import CalibratedClassifierCV  # noqa: E402
from sklearn.cluster import KMeans  # noqa: E402
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor  # noqa: E402
from sklearn.pipeline import Pipeline, make_pipeline  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 6)).astype(np.float32)
S = X[:, 0] + 0.5 * X[:, 1] * X[:, 2]
ROWS = RNG.standard_normal((50, 6)).astype(np.float32)
THREE = np.digitize(S, [-0.5, 0.5])
LABELS = {"booleans": S > 0, "text": np.array(["a", "b", "c"])[THREE], "floats": THREE * 2.0, "integers": THREE}


def boosters(classify: bool) -> dict[str, Any]:
    kind = "Classifier" if classify else "Regressor"
    return {
        "LightGBM": getattr(lightgbm, f"LGBM{kind}")(n_estimators=5, n_jobs=1, verbose=-1),
        "XGBoost": getattr(xgboost, f"XGB{kind}")(n_estimators=5, n_jobs=1),
        "CatBoost": getattr(catboost, f"CatBoost{kind}")(
            iterations=5, verbose=0, thread_count=1, allow_writing_files=False
        ),
        "HistGradientBoosting": getattr(ensemble, f"HistGradientBoosting{kind}")(max_iter=5),
    }


def compare(estimator: Any, rows: Any = ROWS, feeds: Any = None, **tolerance: float) -> None:
    model = from_object(estimator)
    found, probabilities = outputs(model, rows if feeds is None else feeds)
    wanted = np.asarray(estimator.predict(rows))
    assert_close(found, wanted[:, 0] if wanted.shape[1:] == (1,) else wanted, **tolerance)
    if probabilities is not None:
        assert_close(probabilities, estimator.predict_proba(rows), **{"atol": 1e-6, **tolerance})


@pytest.mark.parametrize(
    ("name", "labels"),
    [(name, labels) for name in boosters(True) for labels in LABELS if name != "XGBoost" or labels == "integers"],
)
def test_classifier_in_a_pipeline(name: str, labels: str) -> None:
    booster = boosters(True)[name]
    compare(make_pipeline(SimpleImputer(), preprocessing.StandardScaler(), booster).fit(X, LABELS[labels]))


@pytest.mark.parametrize("name", boosters(False))
def test_regressor_in_a_pipeline(name: str) -> None:
    compare(make_pipeline(preprocessing.StandardScaler(), boosters(False)[name]).fit(X, S), atol=1e-7)


@pytest.mark.parametrize("labels", LABELS)
def test_histogram_classifier(labels: str) -> None:
    """In float64, with NaN and infinities."""
    model = ensemble.HistGradientBoostingClassifier(max_iter=5)
    x = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
    model.fit(x, LABELS[labels])
    rows = np.where(RNG.random(ROWS.shape) < 0.2, np.nan, ROWS)
    rows[0, 0], rows[1, 1] = np.inf, -np.inf
    found, probabilities = outputs(from_object(model), rows)
    assert_close(found, model.predict(rows))
    assert_close(probabilities, model.predict_proba(rows), rtol=1e-13)


@pytest.mark.parametrize("loss", ["squared_error", "poisson", "gamma", "quantile", "absolute_error"])
def test_histogram_regressor(loss: str) -> None:
    model = ensemble.HistGradientBoostingRegressor(max_iter=5, loss=loss, quantile=0.3).fit(X, np.abs(S) + 0.1)
    found, wanted = outputs(from_object(model), ROWS)[0], model.predict(ROWS)
    assert_close(found, wanted, rtol=1e-14)
    if loss not in ("poisson", "gamma"):
        np.testing.assert_array_equal(found, wanted)


ESTIMATORS: dict[str, tuple[Any, Array]] = {
    "a forest": (ensemble.RandomForestClassifier(5), LABELS["text"]),
    "a forest of booleans": (ensemble.RandomForestClassifier(5), LABELS["booleans"]),
    "gradient boosting": (ensemble.GradientBoostingClassifier(n_estimators=5), LABELS["floats"]),
    "a forest that regresses": (ensemble.ExtraTreesRegressor(5), S),
    "two numbers": (ensemble.RandomForestRegressor(5), np.stack([S, S * 2], 1)),
    "two labels": (ensemble.RandomForestClassifier(5), np.stack([S > 0, THREE], 1)),
    "logistic": (linear_model.LogisticRegression(), THREE),
    "linear": (linear_model.LinearRegression(), S),
    "linear, two numbers": (linear_model.Ridge(), np.stack([S, S * 2], 1)),
    "clusters": (KMeans(3), S),
    "outliers": (ensemble.IsolationForest(n_estimators=5), S),
    "boosters of several labels": (MultiOutputClassifier(boosters(True)["LightGBM"]), np.stack([S > 0, THREE], 1)),
    "boosters of several numbers": (MultiOutputRegressor(boosters(False)["LightGBM"]), np.stack([S, S * 2], 1)),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimator(name: str) -> None:
    estimator, labels = ESTIMATORS[name]
    compare(estimator.fit(X, labels), rtol=1e-5, atol=1e-6)


def test_boosters_beside_trees_of_scikit_learn() -> None:
    """These need the older tree operators, since no operator set has both."""
    parts = [
        ("l", boosters(True)["LightGBM"]),
        ("x", boosters(True)["XGBoost"]),
        ("r", ensemble.RandomForestClassifier(5)),
    ]
    compare(ensemble.StackingClassifier(parts, cv=2).fit(X, THREE), rtol=1e-5)


def test_search() -> None:
    pipeline = make_pipeline(preprocessing.StandardScaler(), boosters(True)["LightGBM"])
    compare(GridSearchCV(pipeline, {"lgbmclassifier__num_leaves": [5, 7]}, cv=2).fit(X, THREE))


def frame(rows: int) -> Any:
    rng = np.random.default_rng(rows)
    found = pandas.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.1, np.nan, rng.standard_normal(rows).astype(np.float32)),
            "city": rng.choice(["oslo", "rome", "bern"], rows),
            "income": rng.standard_normal(rows).astype(np.float32),
            "level": rng.integers(0, 4, rows),
            "unused": rng.choice(["u", "v"], rows),
        }
    )
    if rows == 50:
        found.loc[3, "city"] = "never seen"
        found.loc[4, "level"] = 9
    return found


@pytest.mark.parametrize("name", [*boosters(True), "forest"])
def test_columns(name: str) -> None:
    """Each column of a DataFrame is an input: numbers in float64, and text. Columns that are dropped are none."""
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), preprocessing.StandardScaler()), ["age", "income"]),
            ("one-hot", preprocessing.OneHotEncoder(handle_unknown="ignore"), ["city"]),
            ("ordinal", preprocessing.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["level"]),
        ]
    )
    last = ensemble.RandomForestClassifier(5) if name == "forest" else boosters(True)[name]
    train, rows = frame(300), frame(50)
    pipeline = Pipeline([("columns", columns), ("model", last)]).fit(train, (train.city == "rome") ^ (train.age > 0))
    model = from_object(pipeline)
    assert [each.name for each in model.graph.input] == ["age", "city", "income", "level"]
    feeds = {
        each.name: rows[[each.name]].to_numpy().astype(object if each.name == "city" else np.float64)
        for each in model.graph.input
    }
    compare(pipeline, rows, feeds, atol=1e-6)


@pytest.mark.parametrize("name", [*boosters(True), "forest"])
@pytest.mark.parametrize("indicators", [False, True])
def test_numbers_at_thresholds(name: str, indicators: bool) -> None:
    """Numbers of one decimal are at thresholds often, and imputed ones at zero: a rounding would move them across."""
    rng = np.random.default_rng(0)
    table = np.round(rng.normal(50, 10, (3000, 5)), 1)
    table[rng.random(table.shape) < 0.1] = np.nan
    last = ensemble.RandomForestClassifier(20, max_depth=8) if name == "forest" else boosters(True)[name]
    steps = SimpleImputer(add_indicator=indicators), preprocessing.StandardScaler(), last
    pipeline = make_pipeline(*steps).fit(table[:2000], np.nansum(table[:2000, :3], 1) > 135)
    compare(pipeline, table[2000:], atol=1e-6)


def test_ties_of_forests() -> None:
    """Half of 20 trees say so: scikit-learn takes the first class."""
    forest = ensemble.RandomForestClassifier(20, random_state=0).fit(X, S + RNG.standard_normal(300) > 0)
    rows = RNG.standard_normal((1000, 6)).astype(np.float32)
    assert (forest.predict_proba(rows)[:, 0] == 0.5).any()
    compare(forest, rows)


def test_sets_of_categories_in_a_pipeline() -> None:
    encoder = preprocessing.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = ColumnTransformer([("n", "passthrough", ["age", "income"]), ("o", encoder, ["city", "level"])])
    last = lightgbm.LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1, min_data_per_group=1, max_cat_to_onehot=1)
    train = frame(300)
    train["level"] = train["level"].map({0: "a", 1: "b", 2: "c", 3: "d"})
    rows = frame(50)
    rows["level"] = rows["level"].map({0: "a", 1: "b", 2: "c", 3: "d", 9: "e"})
    pipeline = Pipeline([("columns", columns), ("model", last)])
    pipeline.fit(train, (train.city == "rome") ^ (train.level == "b"), model__categorical_feature=[2, 3])
    texts = ("city", "level")
    feeds = {
        name: rows[[name]].to_numpy().astype(object if name in texts else np.float64)
        for name in ("age", "city", "income", "level")
    }
    compare(pipeline, rows, feeds, atol=1e-6)


def test_refused() -> None:
    """Also what skl2onnx makes into a model that predicts otherwise: the calibration is of ``decision_function``."""
    with pytest.raises(ModelError, match="differs from its own"):
        from_object(CalibratedClassifierCV(boosters(True)["LightGBM"], cv=2).fit(X, S > 0))
    with pytest.raises(ModelError, match="not fitted yet"):
        from_object(make_pipeline(preprocessing.StandardScaler(), linear_model.LinearRegression()))
    with pytest.raises(ModelError, match="not fitted yet"):
        from_object(ensemble.HistGradientBoostingRegressor())
    mixed = np.array([["a", "b", "c"], [1.0, 2.0, 3.0]], object).T
    columns = ColumnTransformer([("o", preprocessing.OneHotEncoder(), [0]), ("n", "passthrough", [1])])
    pipeline = make_pipeline(columns, linear_model.LinearRegression()).fit(mixed, [1, 2, 3])
    with pytest.raises(ModelError, match="numbers and text in one array"):
        from_object(pipeline)
    for other in (3, "x", None, X, linear_model.LinearRegression):
        assert from_object(other) is None


def test_skl2onnx_is_as_it_was() -> None:
    from skl2onnx._parse import sklearn_parsers_map
    from skl2onnx._supported_operators import sklearn_operator_name_map

    before = dict(sklearn_operator_name_map), dict(sklearn_parsers_map)
    from_object(make_pipeline(preprocessing.StandardScaler(), boosters(True)["LightGBM"]).fit(X, THREE))
    assert before == (sklearn_operator_name_map, sklearn_parsers_map)


@pytest.mark.parametrize("compress", [0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3)])
def test_joblib(tmp_path: Path, compress: Any) -> None:
    """Files of joblib and pickle are programs, which only run with trust."""
    model = boosters(True)["LightGBM"].fit(X, THREE)
    joblib.dump(model, tmp_path / "model.joblib", compress=compress)
    assert recognise(tmp_path / "model.joblib") == "joblib or pickle"
    with pytest.raises(UsageError, match="--trust runs it"):
        read_model_file(tmp_path / "model.joblib")
    found, _ = outputs(read_model_file(tmp_path / "model.joblib", trust=True), ROWS)
    np.testing.assert_array_equal(found, model.predict(ROWS))


def test_joblib_of_something_else(tmp_path: Path) -> None:
    joblib.dump({"a": 1}, tmp_path / "model.joblib")
    with pytest.raises(ModelError, match=r"holds a builtins\.dict"):
        read_model_file(tmp_path / "model.joblib", trust=True)
    (tmp_path / "model.joblib").write_bytes(b"\x80\x04nonsense")
    with pytest.raises(ModelError, match="cannot be loaded"):
        read_model_file(tmp_path / "model.joblib", trust=True)


def test_no_library_is_imported_for_others() -> None:
    """Asking about an object that is no model imports none of the libraries."""
    code = (
        "import sys; from collage.frontend.trees.objects import from_object; assert from_object([]) is None;"
        "assert not {'lightgbm', 'xgboost', 'catboost', 'sklearn', 'skl2onnx', 'joblib', 'pandas'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": ""})


@pytest.mark.parametrize("kind", ["RandomForest", "ExtraTrees"])
def test_missing_values_go_where_the_trees_send_them(kind: str) -> None:
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.float32(np.nan), X)
    rows = np.where(np.random.default_rng(2).random(ROWS.shape) < 0.3, np.float32(np.nan), ROWS)
    target = np.nan_to_num(holes[:, 0], nan=2.0) - np.nan_to_num(holes[:, 1], nan=-2.0)
    compare(getattr(ensemble, f"{kind}Regressor")(5, random_state=0).fit(holes, target), rows, rtol=1e-5, atol=1e-6)
    compare(getattr(ensemble, f"{kind}Classifier")(5, random_state=0).fit(holes, target > 0), rows, atol=1e-6)


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("library", ["LightGBM", "CatBoost", "HistGradientBoosting"])
def test_classifiers_take_any_number_of_rows(library: str, name: str) -> None:
    model = from_object(boosters(True)[library].fit(X, LABELS[name]))
    assert model is not None and take_rows(model)
