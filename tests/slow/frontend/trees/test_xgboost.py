"""XGBoost's predictions: sums to the bit, links within rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.errors import ModelError
from collage.frontend.trees.files import read_model_file, recognise
from collage.frontend.trees.objects import from_object
from tests.slow.frontend.trees.compared import Array, assert_close, hostile, outputs, table, target

xgboost = pytest.importorskip("xgboost")
pytestmark = pytest.mark.filterwarnings("ignore")

X = table(1).astype(np.float32)
S = target(X)
THREE = np.digitize(S, [0, 0.5])
OBJECTIVES: dict[str, tuple[Array, dict[str, Any]]] = {
    "reg:squarederror": (S, {}),
    "reg:squaredlogerror": (np.abs(S), {}),
    "reg:logistic": (1 / (1 + np.exp(-S)), {}),
    "reg:pseudohubererror": (S, {}),
    "reg:absoluteerror": (S, {}),
    "reg:quantileerror": (S, {"quantile_alpha": 0.3}),
    "three quantiles": (S, {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.5, 0.9]}),
    "reg:gamma": (np.abs(S) + 0.1, {}),
    "reg:tweedie": (np.abs(S), {}),
    "count:poisson": (np.abs(S), {}),
    "survival:cox": (np.abs(S) + 0.1, {}),
    "survival:aft": (np.abs(S) + 0.1, {}),
    "binary:logistic": (S > 0.3, {}),
    "binary:logitraw": (S > 0.3, {}),
    "binary:hinge": (S > 0.3, {}),
    "only zeros": (S > 99, {"objective": "binary:logistic"}),
    "multi:softprob": (THREE, {"num_class": 3}),
    "multi:softmax": (THREE, {"num_class": 3}),
    "rank:pairwise": (THREE, {}),
    "rank:ndcg": (THREE, {}),
    "rank:map": (S > 0.3, {}),
    "several targets": (np.stack([S, -S, S * S], 1), {"objective": "reg:squarederror"}),
    "several labels": (np.stack([S > 0, S > 0.5], 1), {"objective": "binary:logistic"}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a base score": {"base_score": 0.3},
    "dart": {"booster": "dart", "rate_drop": 0.5, "one_drop": True},
    "parallel trees": {"num_parallel_tree": 3, "subsample": 0.5},
    "pruned trees": {"tree_method": "exact", "gamma": 1.0},
}
VECTORS = {"objective": "reg:squarederror", "multi_strategy": "multi_output_tree"}


def matrix(x: Array, categories: bool, labels: Any = None) -> Any:
    kinds = ["q", "q", "q", *("cc" if categories else "qq")]
    return xgboost.DMatrix(x, labels, feature_types=kinds, enable_categorical=True, nthread=1)


def train(objective: str, categories: bool = False, **settings: Any) -> Any:
    labels, special = OBJECTIVES[objective]
    params = {
        **{"objective": objective, "max_depth": 4, "nthread": 1, "tree_method": "hist", "max_cat_to_onehot": 4},
        **special,
        **settings,
    }
    data = matrix(X, categories, None if objective == "survival:aft" else np.asarray(labels, float))
    if objective == "survival:aft":
        data.set_float_info("label_lower_bound", labels)
        data.set_float_info("label_upper_bound", labels + 1)
    if objective.startswith("rank"):
        data.set_group([50] * 8)
    return xgboost.train(params, data, 8)


def rows(booster: Any, seed: int = 5) -> Array:
    """XGBoost refuses infinities."""
    value = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]
    trees = value.get("gbtree", value)["model"]["trees"]
    thresholds = [each for tree in trees for each in tree["split_conditions"]]
    return hostile(seed, thresholds, infinite=False).astype(np.float32)


CASES = [(objective, "nothing", categories) for objective in OBJECTIVES for categories in (False, True)]
CASES += [
    (objective, setting, categories)
    for objective in ("reg:squarederror", "reg:gamma", "binary:logistic", "multi:softprob")
    for setting in [*SETTINGS][1:]
    for categories in (False, True)
    if not (setting == "pruned trees" and categories)  # XGBoost's exact method takes none
]
RAW = [name for name in OBJECTIVES if name.startswith(("reg:s", "reg:p", "reg:a", "reg:q", "three", "rank"))]
EXACT = {*RAW, "binary:logitraw", "binary:hinge", "multi:softmax", "several targets"}


@pytest.mark.parametrize(("objective", "setting", "categories"), CASES)
def test_booster(objective: str, setting: str, categories: bool) -> None:
    booster = train(objective, categories, **SETTINGS[setting])
    x = rows(booster)
    found, probabilities = outputs(from_object(booster), x)
    wanted = booster.predict(matrix(x, categories))
    if objective in EXACT:
        np.testing.assert_array_equal(found, wanted)
    assert_close(found, wanted)
    if objective == "binary:logistic":
        np.testing.assert_array_equal(probabilities[:, 1], found)
    else:
        assert (probabilities is not None) == (objective in ("multi:softprob", "several labels", "only zeros"))


def test_leaves_of_several_targets() -> None:
    booster = xgboost.train({**VECTORS, "max_depth": 3}, matrix(X, False, np.stack([S, -S, S * S], 1)), 6)
    x = rows(booster)
    model = from_object(booster)
    assert [node.op_type for node in model.graph.node] == ["TreeEnsembleRegressor"]
    np.testing.assert_array_equal(outputs(model, x)[0], booster.predict(matrix(x, False)))


@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic", "multi:softprob"])
def test_files(tmp_path: Path, objective: str) -> None:
    """JSON and UBJSON files are what their object is."""
    booster = train(objective, True)
    wanted = from_object(booster).SerializeToString(deterministic=True)
    for name, kind in (("model.json", "XGBoost JSON"), ("model.ubj", "XGBoost UBJSON")):
        booster.save_model(tmp_path / name)
        assert recognise(tmp_path / name) == kind
        model = read_model_file(tmp_path / name)
        assert model.SerializeToString(deterministic=True) == wanted
    meta = {each.key: each.value for each in model.metadata_props}
    assert meta["collage.library"] == f"xgboost {xgboost.__version__}" and meta["collage.kind"] == "booster"


CLASSIFIERS: dict[str, tuple[Array, dict[str, Any]]] = {
    "two": (S > 0.3, {}),
    "three": (THREE, {}),
    "softmax": (THREE, {"objective": "multi:softmax"}),
    "hinge": (S > 0.3, {"objective": "binary:hinge"}),
    "several labels": (np.stack([S > 0, S > 0.5], 1) * 1, {}),
    "a forest": (THREE, {}),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier(name: str) -> None:
    labels, settings = CLASSIFIERS[name]
    kind = xgboost.XGBRFClassifier if name == "a forest" else xgboost.XGBClassifier
    model = kind(n_estimators=5, max_depth=3, n_jobs=1, **settings).fit(X, labels)
    x = rows(model.get_booster())
    found, probabilities = outputs(from_object(model), x)
    np.testing.assert_array_equal(found, model.predict(x))
    assert_close(probabilities, model.predict_proba(x))


@pytest.mark.parametrize("missing", [0.0, -1.0])
def test_another_number_is_missing(missing: float) -> None:
    model = xgboost.XGBRegressor(n_estimators=5, max_depth=3, n_jobs=1, missing=missing).fit(X, S)
    x = rows(model.get_booster())
    np.testing.assert_array_equal(outputs(from_object(model), x)[0], model.predict(x))


def test_early_stopping() -> None:
    """Only the rounds up to the best one count for the estimator, and all for its booster."""
    model = xgboost.XGBClassifier(n_estimators=60, learning_rate=0.9, n_jobs=1, early_stopping_rounds=2)
    x = table(7).astype(np.float32)
    model.fit(X, THREE, eval_set=[(x, np.digitize(target(x), [0, 0.5]))], verbose=False)
    assert model.best_iteration < 57
    x = rows(model.get_booster())
    assert_close(outputs(from_object(model), x)[1], model.predict_proba(x))
    assert_close(outputs(from_object(model.get_booster()), x)[0], model.get_booster().predict(matrix(x, False)))


def test_refused() -> None:
    with pytest.raises(ModelError, match="not fitted yet"):
        from_object(xgboost.XGBClassifier())
    with pytest.raises(ModelError, match="gblinear"):
        from_object(xgboost.train({"booster": "gblinear"}, xgboost.DMatrix(np.nan_to_num(X), S), 2))
    with pytest.raises(ModelError, match="no probabilities"):
        from_object(xgboost.XGBClassifier(n_estimators=2, objective="binary:logitraw").fit(X, S > 0))
    assert from_object(matrix(X, False)) is None
