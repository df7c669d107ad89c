"""Trained objects of LightGBM, XGBoost and CatBoost as boosters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage.core.library_text import library_text
from collage.core.temporary import TemporaryFolder
from collage.errors import ModelError
from collage.frontend.trees.booster import Booster, Kind
from collage.frontend.trees.catboost_binary import read_binary
from collage.frontend.trees.forest import FORESTS, read_forest, takes
from collage.frontend.trees.histogram import read_histogram
from collage.frontend.trees.lightgbm_text import read_lightgbm
from collage.frontend.trees.ubjson import read_ubjson
from collage.frontend.trees.xgboost_json import read_xgboost

ESTIMATORS = {
    "lightgbm": ("LGBMClassifier", "LGBMRegressor", "LGBMRanker", "LGBMModel"),
    "xgboost": ("XGBClassifier", "XGBRegressor", "XGBRanker", "XGBRFClassifier", "XGBRFRegressor", "XGBModel"),
    "catboost": ("CatBoostClassifier", "CatBoostRegressor", "CatBoostRanker"),
    "sklearn.ensemble": (
        *("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"),
        *(each for each in FORESTS if "Tree" not in each or "Trees" in each),
    ),
    "sklearn.tree": tuple(each for each in FORESTS if "Tree" in each and "Trees" not in each),
}
"""The estimators that are boosters, by their modules."""


@dataclass(frozen=True)
class Described:
    """A booster, and how its object predicts."""

    booster: Booster
    kind: Kind
    labels: Sequence[Any] | NDArray[Any] | None = None
    """Of a classifier; None for numbers from 0."""
    raw: bool = False
    """Whether it predicts sums."""


def library_of(obj: Any) -> str:
    """The library that the class of an object is from, or the first one of the classes that it inherits from."""
    known = {module.partition(".")[0] for module in ESTIMATORS}
    roots = (each.__module__.partition(".")[0] for each in type(obj).__mro__)
    return next((root for root in roots if root in known), "")


def describe(obj: Any) -> Described | None:
    """The booster of an object; None for what is none. Raises ModelError for one that Collage does not take."""
    readers = {"lightgbm": _lightgbm, "xgboost": _xgboost, "catboost": _catboost, "sklearn": _sklearn}
    library = library_of(obj)
    return readers[library](obj, f"the {type(obj).__name__}") if library in readers else None


def _lightgbm(obj: Any, what: str) -> Described | None:
    import lightgbm

    if isinstance(obj, lightgbm.Booster):
        return Described(read_lightgbm(_lightgbm_text(obj, what), what), "booster")
    if not isinstance(obj, lightgbm.LGBMModel):
        return None
    if not obj.__sklearn_is_fitted__():
        raise _not_fitted(what)
    booster = read_lightgbm(_lightgbm_text(obj.booster_, what), what)
    if not isinstance(obj, lightgbm.LGBMClassifier):
        return Described(booster, "regressor")
    if callable(obj._objective):  # LightGBM then gives no labels, and warns
        return Described(booster, "regressor")
    return Described(_for_classes(booster), "classifier", np.asarray(obj.classes_))


def _lightgbm_text(booster: Any, what: str) -> bytes:
    import lightgbm

    try:
        return str(booster.model_to_string(importance_type="split")).encode()
    except lightgbm.basic.LightGBMError as error:
        raise ModelError(f"LightGBM cannot write {what}: {library_text(error)}") from error


def _xgboost(obj: Any, what: str) -> Described | None:
    import xgboost

    if isinstance(obj, xgboost.Booster):
        return Described(_of_xgboost(obj, what), "booster")
    if not isinstance(obj, xgboost.XGBModel):
        return None
    if not obj.__sklearn_is_fitted__():
        raise _not_fitted(what)
    booster = obj.get_booster()
    best = booster.attr("best_iteration")
    if best is not None and obj.booster != "gblinear":
        booster = booster[: int(best) + 1]
    found = _of_xgboost(booster, what).with_missing(np.nan if obj.missing is None else float(obj.missing))
    if not isinstance(obj, xgboost.XGBClassifier):
        return Described(found, "regressor")
    if found.link == "arg max":
        found = replace(found, link="softmax")
    found = _for_classes(found)
    return Described(replace(found, several_labels=found.link == "sigmoid" and found.targets > 1), "classifier")


def _of_xgboost(booster: Any, what: str) -> Booster:
    import xgboost

    try:
        data = bytes(booster.save_raw("ubj"))
    except xgboost.core.XGBoostError as error:
        raise ModelError(f"XGBoost cannot write {what}: {library_text(error)}") from error
    return read_xgboost(read_ubjson(data, what), what)


def _catboost(obj: Any, what: str) -> Described | None:
    import catboost

    if not isinstance(obj, catboost.CatBoost):
        return None
    if not obj.is_fitted():
        raise _not_fitted(what)
    with TemporaryFolder("catboost") as folder:
        file = folder / "model.cbm"
        try:
            obj.save_model(str(file))
        except catboost.CatBoostError as error:
            raise ModelError(f"CatBoost cannot write {what}: {library_text(error)}") from error
        found = read_binary(file.read_bytes(), what)
    if isinstance(obj, catboost.CatBoostClassifier):
        if not found.is_classifier:
            raise ModelError(f"{what} was trained with a loss that gives no probabilities of classes.")
        return Described(found.booster, "classifier", found.labels or None)
    sums = not isinstance(obj, catboost.CatBoostRegressor) or found.is_classifier
    kind: Kind = "regressor" if type(obj) is not catboost.CatBoost else "booster"
    return Described(found.booster, kind, raw=sums)


def _sklearn(obj: Any, what: str) -> Described | None:
    from sklearn.base import is_classifier
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    names = {each.__name__ for each in type(obj).__mro__ if each.__module__.startswith("sklearn.")}
    forest = not names.isdisjoint(FORESTS)
    if not forest and names.isdisjoint(("HistGradientBoostingClassifier", "HistGradientBoostingRegressor")):
        return None
    try:
        check_is_fitted(obj)
    except NotFittedError as error:
        raise _not_fitted(what) from error
    if forest and not takes(obj):
        return None  # skl2onnx does
    booster = read_forest(obj, what) if forest else read_histogram(obj, what)
    if is_classifier(obj):
        return Described(booster, "classifier", np.asarray(obj.classes_))
    return Described(booster, "regressor")


def _for_classes(booster: Booster) -> Booster:
    """The booster of a classifier, which takes what its objective gives for probabilities."""
    likely = booster.link in ("sigmoid", "softmax", "step")
    return replace(booster, classes=max(2, booster.targets) if likely else 0)


def _not_fitted(what: str) -> ModelError:
    return ModelError(f"{what} is not fitted yet: call its fit first.")
