"""LightGBM's predictions: sums to the bit, links within rounding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.errors import ModelError
from collage.frontend.trees.files import read_model_file, recognise
from collage.frontend.trees.objects import from_object
from tests.slow.frontend.trees.compared import Array, assert_close, hostile, outputs, table, target

lightgbm = pytest.importorskip("lightgbm")
pytestmark = pytest.mark.filterwarnings("ignore")

X = table(1)
S = target(X)
OBJECTIVES: dict[str, tuple[Array, dict[str, Any]]] = {
    "regression": (S, {}),
    "regression with roots": (S, {"objective": "regression", "reg_sqrt": True}),
    "regression_l1": (S, {}),
    "huber": (S, {}),
    "fair": (S, {}),
    "quantile": (S, {}),
    "mape": (S, {}),
    "poisson": (np.abs(S), {}),
    "gamma": (np.abs(S) + 0.1, {}),
    "tweedie": (np.abs(S), {}),
    "cross_entropy": (1 / (1 + np.exp(-S)), {}),
    "cross_entropy_lambda": (1 / (1 + np.exp(-S)), {}),
    "binary": (S > 0.3, {"sigmoid": 1.7}),
    "multiclass": (np.digitize(S, [0, 0.5]), {"num_class": 3}),
    "multiclassova": (np.digitize(S, [0, 0.5]), {"num_class": 3, "sigmoid": 0.7}),
    "lambdarank": (np.digitize(S, [0, 0.5]), {}),
    "one of the caller's": (S, {"objective": lambda found, data: (found - data.get_label(), np.ones_like(found))}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "zeros": {"zero_as_missing": True},
    "NaN is zero": {"use_missing": False},
    "a forest": {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
    "dart": {"boosting": "dart", "drop_rate": 0.5},
}


def train(objective: str, categories: bool, **settings: Any) -> Any:
    labels, special = OBJECTIVES[objective]
    params = {
        **{"objective": objective, "num_leaves": 12, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 3},
        **{"max_cat_to_onehot": 3, "min_data_per_group": 1, "cat_smooth": 1, **special, **settings},
    }
    group = [50] * 8 if objective == "lambdarank" else None
    data = lightgbm.Dataset(X, np.asarray(labels, float), categorical_feature=[3, 4] * categories, group=group)
    return lightgbm.train(params, data, 8)


def rows(booster: Any, seed: int = 5) -> Array:
    lines = re.findall(r"\nthreshold=(.*)", booster.model_to_string())
    return hostile(seed, [float(each) for line in lines for each in line.split()])


CASES = [(objective, "nothing") for objective in OBJECTIVES]
CASES += [(objective, setting) for objective in ("regression", "binary", "multiclass") for setting in [*SETTINGS][1:]]


@pytest.mark.parametrize("categories", [False, True])
@pytest.mark.parametrize(("objective", "setting"), CASES)
def test_booster(objective: str, setting: str, categories: bool) -> None:
    booster = train(objective, categories, **SETTINGS[setting])
    x = rows(booster)
    found, probabilities = outputs(from_object(booster), x)
    wanted = booster.predict(x)
    if objective in ("regression", "one of the caller's"):
        np.testing.assert_array_equal(found, wanted)
    assert_close(found, wanted, rtol=1e-13, atol=1e-15)
    if objective == "binary":
        np.testing.assert_array_equal(probabilities[:, 1], found)
        np.testing.assert_array_equal(probabilities[:, 0], 1 - found)
    else:
        assert (probabilities is not None) == (objective in ("multiclass", "multiclassova"))


@pytest.mark.parametrize("objective", ["regression", "binary", "multiclass"])
def test_file(tmp_path: Path, objective: str) -> None:
    """A file is what its object is, and the metadata name its features."""
    booster = train(objective, True)
    booster.save_model(tmp_path / "model.txt")
    assert recognise(tmp_path / "model.txt") == "LightGBM text"
    model = read_model_file(tmp_path / "model.txt")
    assert model.SerializeToString(deterministic=True) == from_object(booster).SerializeToString(deterministic=True)
    meta = {each.key: each.value for each in model.metadata_props}
    assert meta["collage.library"] == "lightgbm v4" and meta["collage.kind"] == "booster"
    assert meta["collage.features"] == '["Column_0", "Column_1", "Column_2", "Column_3", "Column_4"]'


@pytest.mark.parametrize("labels", [S > 0.3, np.where(S > 0.3, "yes", "no"), np.digitize(S, [0, 0.5]) * 2.0, S.round()])
def test_classifier(labels: Array) -> None:
    model = lightgbm.LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1).fit(X, labels)
    x = rows(model.booster_)
    x[np.isinf(x)] = 5
    found, probabilities = outputs(from_object(model), x)
    assert_close(found, model.predict(x))
    assert_close(probabilities, model.predict_proba(x), rtol=1e-13)


def test_early_stopping() -> None:
    """Only the rounds up to the best one count."""
    model = lightgbm.LGBMRegressor(n_estimators=60, learning_rate=0.5, n_jobs=1, verbose=-1)
    stop = lightgbm.early_stopping(2, verbose=False)
    model.fit(X, S, eval_set=[(table(7), target(table(7)))], callbacks=[stop])
    assert model.best_iteration_ < 60
    x = rows(model.booster_)
    np.testing.assert_array_equal(outputs(from_object(model), x)[0], model.predict(x))


def test_refused() -> None:
    with pytest.raises(ModelError, match="not fitted yet"):
        from_object(lightgbm.LGBMClassifier())
    with pytest.raises(ModelError, match="linear tree"):
        from_object(train("regression", False, linear_tree=True))
    assert from_object(lightgbm.Dataset(X)) is None
