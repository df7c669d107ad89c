"""Converters of the operators of scikit-learn, of the boosters, and of this package's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from collage.errors import ModelError
from collage.frontend.trees.described import ESTIMATORS as BOOSTERS
from collage.frontend.trees.described import describe
from collage.windtunnel.modules.bayes import Binarise, Distances, Quadratic
from collage.windtunnel.modules.linear import Linear
from collage.windtunnel.modules.machine import Machine
from collage.windtunnel.modules.part import Part
from collage.windtunnel.modules.scale import Normalise, Scale
from collage.windtunnel.modules.trees import Forest
from collage.windtunnel.registry import Converter


def _standard(op: Any, width: int) -> Part:
    divisor = np.ones(width) if op.scale_ is None else op.scale_
    return Scale.of(divisor, np.zeros(width) if op.mean_ is None or not op.with_mean else op.mean_, divides=True)


def _min_max(op: Any, width: int) -> Part:
    low, high = map(float, op.feature_range)
    return Scale.of(op.scale_, op.min_, (low, high) if op.clip else None)


def _max_abs(op: Any, width: int) -> Part:
    clips = getattr(op, "clip", False)
    return Scale.of(op.scale_, np.zeros(width), (-1.0, 1.0) if clips else None, divides=True)


def _robust(op: Any, width: int) -> Part:
    divisor = np.ones(width) if op.scale_ is None else op.scale_
    return Scale.of(divisor, np.zeros(width) if op.center_ is None else op.center_, divides=True)


def _pca(op: Any, width: int) -> Part:
    weight = op.components_.T
    if op.whiten:
        weight = weight / np.sqrt(np.maximum(op.explained_variance_, np.finfo(np.float64).eps))
    return Linear.of(weight, -op.mean_ @ weight, learnt=False)


def _svd(op: Any, width: int) -> Part:
    return Linear.of(op.components_.T, learnt=False)


def _regression(op: Any, width: int) -> Part:
    return Linear.of(np.atleast_2d(op.coef_).T, np.atleast_1d(op.intercept_))


def _lda_projection(op: Any, width: int) -> Part:
    if op.solver == "lsqr":
        raise ModelError("LinearDiscriminantAnalysis with the solver lsqr has no transform.")
    weight = op.scalings_[:, : op._max_components]
    return Linear.of(weight, -op.xbar_ @ weight if op.solver == "svd" else 0.0, learnt=False)


def _gaussian(op: Any, width: int) -> Part:
    bias = np.log(op.class_prior_) - 0.5 * np.log(2 * np.pi * op.var_).sum(1)
    return Quadratic.of(op.theta_, 0.5 / op.var_, bias)


def _bernoulli(op: Any, width: int) -> tuple[Part, ...]:
    absent = np.log1p(-np.exp(op.feature_log_prob_))
    line = Linear.of((op.feature_log_prob_ - absent).T, op.class_log_prior_ + absent.sum(1))
    return (line,) if op.binarize is None else (Binarise.of(op.binarize, width), line)


def _multinomial(op: Any, width: int) -> Part:
    return Linear.of(op.feature_log_prob_.T, op.class_log_prior_)


def _complement(op: Any, width: int) -> Part:
    return Linear.of(op.feature_log_prob_.T, op.class_log_prior_ if len(op.classes_) == 1 else 0.0)


def _booster(op: Any, width: int) -> Part:
    found = describe(op)
    if found is None:
        raise ModelError(
            f"the {type(op).__name__} has several outputs, or starts from an estimator, which WindTunnel does not take."
        )
    return Forest.of(found.booster)


def _leaves(op: Any, width: int) -> Part:
    found = describe(op.estimator_)
    forest = None if found is None else Forest.of(found.booster, "leaves")
    if forest is None or not hasattr(op.estimator_, "booster_") or forest.width != op.starts_[-1]:
        raise ModelError(f"a LeafEncoder of {type(op.estimator_).__name__} has no converter; one of LightGBM has.")
    return forest


TRANSFORMERS: Mapping[str, Converter] = {
    "StandardScaler": _standard,
    "MinMaxScaler": _min_max,
    "MaxAbsScaler": _max_abs,
    "RobustScaler": _robust,
    "Normalizer": lambda op, width: Normalise.of(op.norm, width),
    "Binarizer": lambda op, width: Binarise.of(op.threshold, width),
    "PCA": _pca,
    "IncrementalPCA": _pca,
    "TruncatedSVD": _svd,
    "LinearDiscriminantAnalysis": _lda_projection,
    "KMeans": lambda op, width: Distances.of(op.cluster_centers_),
    "MiniBatchKMeans": lambda op, width: Distances.of(op.cluster_centers_),
    "collage.windtunnel.sources.LeafEncoder": _leaves,
}
"""Operators between the columns and the last one."""

_LINEAR = """LogisticRegression LogisticRegressionCV LinearDiscriminantAnalysis LinearSVC SGDClassifier RidgeClassifier
RidgeClassifierCV Perceptron PassiveAggressiveClassifier LinearRegression Ridge RidgeCV Lasso LassoCV ElasticNet
ElasticNetCV HuberRegressor BayesianRidge SGDRegressor LinearSVR"""


ESTIMATORS: Mapping[str, Converter] = {
    **dict.fromkeys(_LINEAR.split(), _regression),
    **{name: _booster for names in BOOSTERS.values() for name in names if name.endswith(("Classifier", "Regressor"))},
    "GaussianNB": _gaussian,
    "BernoulliNB": _bernoulli,
    "MultinomialNB": _multinomial,
    "ComplementNB": _complement,
    "KMeans": lambda op, width: Distances.of(op.cluster_centers_, -1),
    "MiniBatchKMeans": lambda op, width: Distances.of(op.cluster_centers_, -1),
    "FactorizationMachine": lambda op, width: Machine.of(op.bias_, op.weights_, op.factors_),
}
"""Operators at the end, whose outputs are scores."""
