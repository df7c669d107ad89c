"""Translated pipelines predict what their sources predict."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("pandas")
pytest.importorskip("lightgbm")

import lightgbm
import onnxruntime
import pandas as pd
import torch
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import SelectFromModel, SelectKBest, VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from collage.errors import ModelError
from collage.windtunnel import graph, translate
from collage.windtunnel.sources import (
    BinaryEncoder,
    Buckets,
    FactorizationMachine,
    HashEncoder,
    LeafEncoder,
    RareCategories,
    TwoHotEncoder,
)
from tests.helpers.windtunnel import boosted, labels, pipeline, strange, table


def imputed(*steps: Any) -> Any:
    return make_pipeline(SimpleImputer(), *steps)


def _dense(**settings: Any) -> OneHotEncoder:
    return OneHotEncoder(sparse_output=False, **settings)


def _xgboost(**settings: Any) -> Any:
    return pytest.importorskip("xgboost").XGBClassifier(n_estimators=6, max_depth=4, n_jobs=1, **settings)


def _catboost() -> Any:
    made = pytest.importorskip("catboost").CatBoostClassifier
    return made(iterations=6, depth=4, verbose=0, thread_count=1, allow_writing_files=False)


CLASSIFIERS = {
    "lightgbm": lambda: pipeline(boosted()),
    "lightgbm, categories": lambda: pipeline(
        boosted(categorical_feature=[2, 3], min_data_per_group=5, cat_smooth=1),
        categories=OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    ),
    "xgboost": lambda: pipeline(_xgboost()),
    "lightgbm, zeros are missing": lambda: pipeline(boosted(zero_as_missing=True)),
    "xgboost, zeros are missing": lambda: pipeline(_xgboost(missing=0.0)),
    "catboost": lambda: pipeline(_catboost()),
    "histograms": lambda: pipeline(HistGradientBoostingClassifier(max_iter=6)),
    "forest": lambda: pipeline(RandomForestClassifier(6, random_state=0)),
    "extra trees": lambda: pipeline(ExtraTreesClassifier(6, random_state=0, max_depth=5)),
    "tree": lambda: pipeline(DecisionTreeClassifier(max_depth=4)),
    "boosting": lambda: pipeline(GradientBoostingClassifier(n_estimators=6), numbers=imputed(StandardScaler())),
    "logistic": lambda: pipeline(LogisticRegression(max_iter=500), numbers=imputed(StandardScaler())),
    "sgd": lambda: pipeline(SGDClassifier(loss="log_loss", random_state=0), numbers=imputed(StandardScaler())),
    "svm": lambda: pipeline(LinearSVC(), numbers=imputed(RobustScaler())),
    "lda": lambda: pipeline(LinearDiscriminantAnalysis(), numbers=imputed(MaxAbsScaler())),
    "gaussian": lambda: pipeline(PCA(4, whiten=True), GaussianNB(), numbers=imputed(StandardScaler())),
    "bernoulli": lambda: pipeline(BernoulliNB(), numbers=imputed(StandardScaler())),
    "multinomial": lambda: pipeline(MultinomialNB(), numbers=imputed(MinMaxScaler(clip=True))),
    "kmeans": lambda: pipeline(KMeans(4, n_init=1, random_state=0), numbers=imputed(StandardScaler())),
    "union": lambda: pipeline(
        FeatureUnion([("p", PCA(3)), ("k", KMeans(3, n_init=1)), ("s", TruncatedSVD(3))], transformer_weights={"k": 2}),
        Normalizer(),
        LogisticRegression(),
        numbers=imputed(StandardScaler()),
    ),
    "rare categories": lambda: pipeline(
        LogisticRegression(max_iter=500),
        numbers=imputed(MinMaxScaler()),
        categories=_dense(handle_unknown="infrequent_if_exist", min_frequency=35, drop="first"),
    ),
    "target": lambda: pipeline(boosted(), categories=TargetEncoder(random_state=0)),
    "two-hot": lambda: pipeline(boosted(), categories=make_pipeline(RareCategories(25), TwoHotEncoder())),
    "indicators": lambda: pipeline(
        LogisticRegression(max_iter=500),
        numbers=FeatureUnion(
            [
                ("filled", make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())),
                ("absent", MissingIndicator(features="all")),
            ]
        ),
    ),
    "selections": lambda: pipeline(
        VarianceThreshold(),
        SelectKBest(k=12),
        SelectFromModel(LogisticRegression(max_iter=500)),
        LogisticRegression(max_iter=500),
        numbers=imputed(StandardScaler()),
    ),
    "selected columns": lambda: pipeline(
        DecisionTreeClassifier(max_depth=5), numbers=make_pipeline(VarianceThreshold(1.5), StandardScaler())
    ),
    "buckets": lambda: pipeline(
        LogisticRegression(), numbers=imputed(Buckets(7), HashEncoder(5)), categories=BinaryEncoder()
    ),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("classes", [2, 3])
def test_classifiers(name: str, classes: int) -> None:
    source = CLASSIFIERS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of categories that fold, and of names
        source.fit(table(), labels(classes))
        found = translate(source)
        for method in ("predict_proba", "decision_function", "predict"):
            assert hasattr(found, method) or not hasattr(source, method)
            if hasattr(source, method):
                wanted = np.asarray(getattr(source, method)(strange()), np.float64)
                given = getattr(found, method)(strange())
                np.testing.assert_allclose(given, wanted.reshape(given.shape), rtol=0, atol=2e-6, err_msg=method)


REGRESSORS = {
    "forest": RandomForestRegressor(5, random_state=0),
    "boosting": GradientBoostingRegressor(n_estimators=5),
    "linear": LinearRegression(),
    "several": Ridge(),
    "poisson": lightgbm.LGBMRegressor(n_estimators=5, objective="poisson", verbose=-1, n_jobs=1),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name: str) -> None:
    rows = table()[["b", "d"]].to_numpy(float)
    y = rows @ [[0.3, 1.0], [0.1, -1.0]] + 5
    source = REGRESSORS[name].fit(rows, y if name == "several" else y[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of LightGBM's names
        wanted = source.predict(rows)
    given = translate(source).predict(rows)
    assert given.shape == wanted.shape
    np.testing.assert_allclose(given, wanted, rtol=1e-6)


def test_leaves_and_machine() -> None:
    """A factorisation machine on the leaves of LightGBM, which are those that LightGBM itself gives."""
    leaves = LeafEncoder(boosted())
    source = pipeline(leaves, FactorizationMachine(dim=3, epochs=2), numbers=imputed(), categories=BinaryEncoder())
    source.fit(table(), labels())
    before = source[0].transform(strange())
    np.testing.assert_array_equal(translate(source[1]).transform(before), source[1].transform(before).toarray())
    found = translate(source).predict_proba(strange())
    np.testing.assert_allclose(found, source.predict_proba(strange()), rtol=0, atol=1e-6)


def test_routes_are_those_of_treelite() -> None:
    """The leaves on every row, with NaN and numbers at thresholds, where LightGBM and treelite agree."""
    treelite = pytest.importorskip("treelite")
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(2000, 4)).round(1)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    model = boosted(n_estimators=12).fit(rows, np.nan_to_num(rows).sum(1) > 0)
    forest = translate(model).network_.parts[-1]
    places = forest.route(torch.from_numpy(rows)).numpy()
    found = places - np.arange(12) * forest.path.shape[1]
    np.testing.assert_array_equal(found, model.booster_.predict(rows, pred_leaf=True))
    oracle = treelite.gtil.predict_leaf(treelite.frontend.from_lightgbm(model.booster_), rows)
    for mine, other in zip(found.T, oracle.T, strict=True):  # treelite numbers leaves otherwise
        assert len(set(zip(mine.tolist(), other.tolist(), strict=True))) == len(set(mine.tolist())) == len({*other})


def test_wide_one_hot_codes_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their weights stand in a table, and no identity matrix is made."""
    monkeypatch.setattr(graph, "WIDEST_TABLE", 6)
    source = pipeline(LogisticRegression(max_iter=500), numbers=imputed(StandardScaler())).fit(table(), labels())
    found = translate(source)
    assert [type(part).__name__ for part in found.network_.parts].count("Lookup") == 1
    np.testing.assert_allclose(found.predict_proba(strange()), source.predict_proba(strange()), atol=1e-9)


def test_imputed_categories_and_columns_by_position() -> None:
    """Missing texts become the commonest one before they are encoded; the table is an array of objects."""
    rows = table()[["c", "d"]].astype(object).to_numpy()
    rows[::7, 0] = np.nan
    source = make_pipeline(SimpleImputer(strategy="most_frequent"), _dense(), LogisticRegression())
    source.fit(rows, labels())
    np.testing.assert_allclose(translate(source).predict_proba(rows), source.predict_proba(rows), atol=1e-9)


def test_what_has_no_converter_stays_in_front() -> None:
    from sklearn.preprocessing import PowerTransformer

    source = pipeline(boosted(), numbers=make_pipeline(SimpleImputer(), PowerTransformer()))
    source.fit(table(), labels())
    with pytest.raises(Exception, match=r"num\.powertransformer.*no converter.*front="):
        translate(source)
    found = translate(source, front=("columntransformer.num",))
    np.testing.assert_allclose(found.predict_proba(strange()), source.predict_proba(strange()), atol=1e-6)
    source = make_pipeline(PowerTransformer(), LogisticRegression()).fit(table()[["b", "d"]], labels())
    with pytest.warns(UserWarning, match="stays in front"):
        found = translate(source)
    np.testing.assert_allclose(found.predict_proba(table()), source.predict_proba(table()[["b", "d"]]), atol=1e-9)


def test_converters_can_be_registered() -> None:
    from sklearn.preprocessing import PolynomialFeatures

    from collage.errors import RegistrationError
    from collage.windtunnel import register_converter, registry
    from collage.windtunnel.modules.part import Part

    class Squares(Part):
        def forward(self, x: Any) -> Any:
            return torch.cat((x, x * x), 1)

    class OwnSquares(PolynomialFeatures):
        pass

    register_converter(OwnSquares)(lambda op, width: Squares(width=2 * width))
    try:
        with pytest.raises(RegistrationError, match="already"):
            register_converter(OwnSquares)(lambda op, width: Squares(width=width))
        source = make_pipeline(StandardScaler(), OwnSquares(include_bias=False), Ridge())
        rows = table()[["b"]].to_numpy()
        source.fit(rows, labels())
        np.testing.assert_allclose(translate(source).predict(rows), source.predict(rows), atol=1e-9)
    finally:
        registry._own.clear()


@pytest.mark.parametrize("scaler", [StandardScaler, RobustScaler, MinMaxScaler, MaxAbsScaler])
def test_scalers_give_the_bits_that_trees_compare(scaler: Any) -> None:
    """Thresholds are numbers of the training rows: another rounding takes another path."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3000, (6000, 3)).astype(float)
    y = rows[:, 0] > 1500 + 500 * rng.normal(size=6000)
    source = make_pipeline(scaler(), HistGradientBoostingClassifier(max_iter=20)).fit(rows[:3000], y[:3000])
    found = translate(source)
    np.testing.assert_allclose(found.predict_proba(rows), source.predict_proba(rows), rtol=0, atol=1e-9)
    model = found.to_onnx()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(session.run(None, {"X": rows})[1], source.predict_proba(rows), rtol=0, atol=1e-9)


def test_classes_apart_from_each_other() -> None:
    rows, y = table()[["b", "d"]], labels(3)
    source = boosted(objective="multiclassova").fit(rows, y)
    expected = source.predict_proba(rows)
    assert abs(expected.sum(1) - 1).max() > 0.01
    found = translate(source)
    np.testing.assert_allclose(found.predict_proba(rows), expected, rtol=0, atol=1e-6)
    session = onnxruntime.InferenceSession(found.to_onnx().SerializeToString())
    feeds = {each.name: rows[[each.name]].to_numpy(np.float64) for each in session.get_inputs()}
    np.testing.assert_allclose(session.run(None, feeds)[1], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kinds", [(bool, int), (int, bool), (bool, bool)])
def test_true_is_one(kinds: tuple[type, type]) -> None:
    frame = table()[["b"]].assign(ok=np.arange(len(table())) % 3 == 0)
    encoder = make_column_transformer((_dense(handle_unknown="ignore"), ["ok"]), remainder="passthrough")
    source = make_pipeline(encoder, LogisticRegression()).fit(frame.astype({"ok": kinds[0]}), frame.ok)
    given = frame.astype({"ok": kinds[1]})
    np.testing.assert_allclose(translate(source).predict_proba(given), source.predict_proba(given), atol=1e-6)


def test_a_tokeniser_in_front_takes_a_column_of_texts() -> None:
    frame = table()[["b"]].assign(text=np.where(labels() > 0, "good day", "bad night"))
    columns = make_column_transformer((CountVectorizer(), "text"), (StandardScaler(), ["b"]))
    source = make_pipeline(columns, LogisticRegression()).fit(frame, labels())
    np.testing.assert_allclose(translate(source).predict_proba(frame), source.predict_proba(frame), atol=1e-6)


def test_names_with_spaces() -> None:
    frame = table()[["b", "d"]].rename(columns={"b": "mean radius"})
    source = boosted().fit(frame, labels())
    found = translate(source).predict_proba(frame[["d", "mean radius"]])
    np.testing.assert_allclose(found, source.predict_proba(frame), atol=1e-6)


def test_only_transformers_transform() -> None:
    rows = table()[["b", "d"]]
    assert not hasattr(translate(KMeans(3, n_init=1).fit(rows)), "transform")
    scaler = StandardScaler().fit(rows)
    np.testing.assert_allclose(translate(scaler).transform(rows), scaler.transform(rows), atol=1e-12)


@pytest.mark.parametrize("missing", [None, np.nan])
@pytest.mark.parametrize("kind", [object, "str", "category"])
@pytest.mark.parametrize("settings", [{}, {"handle_unknown": "use_encoded_value", "unknown_value": -1}])
def test_ordinal_codes_are_those_of_the_encoder(missing: Any, kind: Any, settings: Any) -> None:
    """scikit-learn has a code of its own for None."""
    texts = pd.Series(np.where(np.arange(len(table())) % 3, table().c, missing), dtype=object).astype(kind)
    frame = table()[["d"]].assign(text=texts)
    encoder = OrdinalEncoder(encoded_missing_value=-2, max_categories=5, **settings)
    source = make_pipeline(encoder, DecisionTreeClassifier(max_depth=6)).fit(frame, labels())
    np.testing.assert_allclose(translate(source).predict_proba(frame), source.predict_proba(frame), atol=1e-9)
    found = translate(encoder.fit(frame)).transform(frame)
    np.testing.assert_allclose(found, encoder.transform(frame), atol=1e-9)


def test_operators_in_front_take_columns_as_they_are() -> None:
    """None among texts stays None, and types stay."""
    texts = pd.Series(np.where(np.arange(len(table())) % 3, table().c, None), dtype=object, index=table().index[::-1])
    frame = table()[["b"]].set_axis(texts.index).assign(text=texts, other=texts, at=pd.Timestamp("2020-01-01"))
    imputer = SimpleImputer(missing_values=None, strategy="constant", fill_value="?")
    columns = make_column_transformer(
        (make_pipeline(imputer, _dense(handle_unknown="ignore")), ["text", "other"]),
        (FunctionTransformer(lambda frame: frame.assign(at=frame["at"].dt.month)), ["at", "b"]),
        (StandardScaler(), ["b"]),
    )
    source = make_pipeline(columns, LogisticRegression()).fit(frame, labels())
    for rows in (frame, frame[:1]):
        np.testing.assert_allclose(translate(source).predict_proba(rows), source.predict_proba(rows), atol=1e-9)


def _days(frame: Any) -> Any:
    return np.stack([frame["at"].dt.month, frame["at"].dt.year, frame["at"].dt.day], 1)


def test_functions_that_change_the_number_of_columns() -> None:
    """What comes behind them says how many they give; in a union nothing does."""
    frame = table()[["b"]].assign(at=pd.Timestamp("2020-01-01") + pd.to_timedelta(table().d, unit="D"))
    for columns in (
        make_column_transformer((FunctionTransformer(_days), ["at"]), (StandardScaler(), ["b"])),
        make_column_transformer((make_pipeline(FunctionTransformer(_days), StandardScaler()), ["at"])),
        FunctionTransformer(_days),
    ):
        source = make_pipeline(columns, StandardScaler(), LogisticRegression()).fit(frame, labels())
        np.testing.assert_allclose(translate(source).predict_proba(frame), source.predict_proba(frame), atol=1e-9)
    function = FunctionTransformer(_days)
    union = FeatureUnion([("days", function), ("b", make_column_transformer((StandardScaler(), ["b"])))])
    source = make_pipeline(union, LogisticRegression()).fit(frame, labels())
    with pytest.raises(ModelError, match=r"takes 4 columns.*featureunion\.days does not say.*feature_names_out"):
        translate(source)
    function.set_params(feature_names_out=lambda *given: ["month", "year", "day"])
    np.testing.assert_allclose(translate(source).predict_proba(frame), source.predict_proba(frame), atol=1e-9)
