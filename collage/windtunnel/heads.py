"""From the scores of a network to probabilities, labels and predictions, and the loss that trains them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional

from collage.errors import ModelError
from collage.frontend.trees.described import describe
from collage.windtunnel.modules.part import Tensor

Link = Literal["sigmoid", "softmax", "one against rest", "each class", "probabilities", "margin", "exp", "identity"]
"""``one against rest``: sigmoids of each class, divided by their sum; ``each class``: as they are. ``probabilities``:
the scores are probabilities themselves. ``margin``: of a classifier that gives none."""

_SIGMOIDS = ("one against rest", "each class")

_LEAST = 1e-6
"""Probabilities are at least this when a loss takes their logarithm."""


@dataclass(frozen=True)
class Head:
    """The end of a network. A classifier has classes; a regressor or a transformer has none."""

    kind: Literal["classifier", "regressor", "transformer"]
    link: Link
    classes: tuple[Any, ...] = ()
    quantile: float | None = None
    """Of a regressor for a quantile, or for the median, which has the least absolute error."""
    weights: tuple[float, ...] | Literal["balanced"] | None = None
    """Of rows in the loss, by class. ``balanced``: the same for each class in all."""

    def weighted(self, counts: Tensor) -> Head:
        """The head for training on so many rows of each class."""
        if self.weights != "balanced":
            return self
        return replace(self, weights=tuple((counts.sum() / len(counts) / counts.clamp_min(1)).tolist()))

    def log_probabilities(self, scores: Tensor) -> Tensor:
        """[rows, classes]. Scores of two classes are [rows, 1] or [rows, 2]."""
        if self.link in ("sigmoid", "margin") and scores.shape[1] == 1:
            return functional.logsigmoid(torch.cat((-scores, scores), 1))
        if self.link in _SIGMOIDS:
            return functional.logsigmoid(scores)
        if self.link == "probabilities":
            if scores.shape[1] == 1:
                scores = torch.cat((1 - scores, scores), 1)
            kept = scores.clamp(_LEAST, 1)
            return (kept / kept.sum(1, keepdim=True)).log()
        return functional.log_softmax(scores, 1)

    def probabilities(self, scores: Tensor) -> Tensor:
        """[rows, classes]. Raises ModelError for a classifier without."""
        if self.kind != "classifier" or self.link == "margin":
            raise ModelError("the source pipeline gives no probabilities: use predict or decision_function.")
        if self.link == "probabilities":
            scores = torch.cat((1 - scores, scores), 1) if scores.shape[1] == 1 else scores
            kept = scores.clamp(0, 1)
            return kept / kept.sum(1, keepdim=True)
        found = self.log_probabilities(scores).exp()
        return found / found.sum(1, keepdim=True) if self.link == "one against rest" else found

    def predict(self, scores: Tensor) -> Any:
        """Labels, [rows], or numbers, [rows] or [rows, targets], as an array."""
        if self.kind == "classifier":
            if scores.shape[1] == 1:
                best = (scores[:, 0] > (0.5 if self.link == "probabilities" else 0.0)).long()
            else:
                best = scores.argmax(1)
            return np.asarray(self.classes)[best.cpu().numpy()]
        found = (scores.exp() if self.link == "exp" else scores).cpu().numpy()
        return found[:, 0] if found.shape[1] == 1 and self.kind == "regressor" else found

    def loss(self, scores: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The mean of the weighted losses of rows: the negative log likelihood of classes, Poisson's for exp, that of a
        quantile, or else a squared error.
        """
        each = self._losses(scores, y)
        if self.weights is not None and self.weights != "balanced":
            each = each * torch.tensor(self.weights, dtype=each.dtype)[y]
        return (each * weight.to(each.dtype)).mean()

    def _losses(self, scores: Tensor, y: Tensor) -> Tensor:
        if self.kind == "classifier":
            if scores.shape[1] == 1 and self.link != "probabilities":
                given = y.to(scores.dtype)
                return functional.binary_cross_entropy_with_logits(scores[:, 0], given, reduction="none")
            if self.link in _SIGMOIDS:
                wanted = functional.one_hot(y, scores.shape[1]).to(scores.dtype)
                return functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none").sum(1)
            return functional.nll_loss(self.log_probabilities(scores), y, reduction="none")
        y = y.to(scores.dtype).view(len(y), -1)
        if self.link == "exp":
            return functional.poisson_nll_loss(scores, y, reduction="none").mean(1)
        if self.quantile is not None:
            return torch.maximum(self.quantile * (y - scores), (self.quantile - 1) * (y - scores)).mean(1)
        return functional.mse_loss(scores, y, reduction="none").mean(1)


_MARGINS = frozenset("LinearSVC RidgeClassifier RidgeClassifierCV Perceptron PassiveAggressiveClassifier".split())


def head_of(op: Any, width: int) -> Head:
    """The head of a fitted estimator whose network gives scores of this width. Raises ModelError for one class only."""
    name = type(op).__name__
    if name in ("KMeans", "MiniBatchKMeans"):
        return Head("classifier", "margin", tuple(range(width)))
    found = describe(op)
    link: Link
    if found is not None and found.booster.several_labels:
        raise ModelError(f"the {name} has several labels, which WindTunnel does not take.")
    if not hasattr(op, "classes_") or getattr(op, "_estimator_type", "") == "regressor":
        link = "identity"
        if found is not None and not found.raw:
            if found.booster.link not in ("identity", "exp", "sigmoid"):
                raise ModelError(f"the {name} has the link {found.booster.link}, which WindTunnel does not take.")
            link = "exp" if found.booster.link == "exp" else "identity"
            if found.booster.link == "sigmoid":
                raise ModelError(f"the {name} predicts probabilities as a regressor: train the classifier instead.")
        return Head("regressor", link, quantile=_quantile(op))
    classes = tuple(np.asarray(op.classes_).tolist())
    if len(classes) < 2:
        raise ModelError(f"the {name} has seen one class only.")
    if found is not None:
        links: dict[str, Link] = {"sigmoid": "sigmoid", "softmax": "softmax", "identity": "probabilities"}
        if found.booster.link not in links or not found.booster.classes:
            raise ModelError(f"the {name} has the link {found.booster.link}, which WindTunnel does not take.")
        link = links[found.booster.link]
        if link == "sigmoid" and width > 1:
            link = "each class"
    elif name in _MARGINS or (name == "SGDClassifier" and op.loss != "log_loss"):
        link = "margin"
    elif width == 1:
        link = "sigmoid"
    elif name == "SGDClassifier" or getattr(op, "solver", "") == "liblinear" or getattr(op, "multi_class", "") == "ovr":
        link = "one against rest"
    else:
        link = "softmax"
    return Head("classifier", link, classes, weights=_weights(op))


_MEDIANS = frozenset("regression_l1 l1 mae mean_absolute_error reg:absoluteerror absolute_error MAE".split())
_QUANTILES = frozenset("quantile reg:quantileerror Quantile".split())


def _quantile(op: Any) -> float | None:
    """The quantile that a fitted regressor predicts; None for a mean."""
    given = op.get_params() if hasattr(op, "get_params") else {}
    loss = str(next((given[key] for key in ("objective", "loss", "loss_function") if given.get(key)), ""))
    name, _, rest = loss.partition(":alpha=")  # CatBoost's
    if name in _MEDIANS:
        return 0.5
    if name not in _QUANTILES:
        return None
    known = [given.get(key) for key in ("quantile_alpha", "quantile", "alpha")]
    if any(isinstance(each, (list, tuple, np.ndarray)) for each in known):
        raise ModelError(f"the {type(op).__name__} predicts several quantiles, which WindTunnel does not take.")
    level = rest or next((each for each in known if each is not None), 0.5 if name == "Quantile" else 0.9)
    return float(level)


def _weights(op: Any) -> tuple[float, ...] | Literal["balanced"] | None:
    """The weights of classes that a fitted classifier was trained with. None: equal ones."""
    given = op.get_params() if hasattr(op, "get_params") else {}
    weight = given.get("class_weight")
    if isinstance(weight, dict):
        return tuple(float(weight.get(each, 1.0)) for each in np.asarray(op.classes_).tolist())
    if weight == "balanced" or given.get("is_unbalance") or given.get("auto_class_weights") == "Balanced":
        return "balanced"
    if given.get("scale_pos_weight") not in (None, 1, 1.0):
        return (1.0, float(given["scale_pos_weight"]))
    return None
