"""Areas under ROC curves and logarithmic losses, and their paired differences with intervals that draw whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
CONFIDENCE = 0.95
_RESAMPLES = 1000
_LEAST = 1e-7


@dataclass(frozen=True)
class Scored:
    """Probabilities of two models, for the same rows; each row is of a group, numbered from 0."""

    truth: Ints
    groups: Ints
    ours: Floats
    theirs: Floats


def auc(probabilities: NDArray[Any], truth: Ints) -> float:
    """The area under the ROC curve; NaN if there is one class only."""
    return float(_Ranked(probabilities, truth).area(np.ones(len(truth))))


def log_loss(probabilities: NDArray[Any], truth: Ints) -> float:
    """The mean logarithmic loss."""
    return float(_losses(probabilities, truth).mean())


def difference(models: Sequence[Scored]) -> dict[str, Any]:
    """Our AUC and log-loss less theirs, each with its mean and 95 % interval.

    Several pairs of models, of several seeds, count as their mean. A resample draws groups, with all their rows in all
    pairs: days that are in the test rows of several seeds are drawn for all of them. The same values always give the
    same interval.
    """
    size = 1 + max(int(each.groups.max()) for each in models)
    present = np.unique(np.concatenate([np.unique(each.groups) for each in models]))
    generator = np.random.default_rng(0)
    ranked = [(each, _Ranked(each.ours, each.truth), _Ranked(each.theirs, each.truth)) for each in models]
    gaps = [_losses(each.ours, each.truth) - _losses(each.theirs, each.truth) for each in models]
    sums = [np.bincount(each.groups, gap, size) for each, gap in zip(models, gaps, strict=True)]
    rows = [np.bincount(each.groups, minlength=size) for each in models]
    areas, losses = [], []
    for number in range(_RESAMPLES + 1):
        drawn = present if not number else generator.choice(present, len(present))
        weights = np.bincount(drawn, minlength=size).astype(np.float64)
        pairs = [(ours.area(weights[each.groups]), theirs.area(weights[each.groups])) for each, ours, theirs in ranked]
        areas.append(np.mean([ours - theirs for ours, theirs in pairs]))
        losses.append(np.mean([weights @ a / (weights @ b).clip(1) for a, b in zip(sums, rows, strict=True)]))
    return {"auc": _interval(areas), "log_loss": _interval(losses)}


def _interval(values: Sequence[Any]) -> dict[str, float]:
    """The first value, and the interval of the others."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(np.array(values[1:], np.float64), (tail, 1 - tail))
    return {"mean": round(float(values[0]), 5), "low": round(float(low), 5), "high": round(float(high), 5)}


def _losses(probabilities: NDArray[Any], truth: Ints) -> Floats:
    chances = np.asarray(probabilities, np.float64).clip(_LEAST, 1 - _LEAST)
    found: Floats = -np.where(truth == 1, np.log(chances), np.log1p(-chances))
    return found


class _Ranked:
    """Rows in the order of their probabilities, sorted once for all resamples."""

    def __init__(self, probabilities: NDArray[Any], truth: Ints) -> None:
        values, equal = np.unique(probabilities, return_inverse=True)
        self._equal, self._size, self._positive = equal, len(values), truth == 1

    def area(self, weights: Floats) -> float:
        """The area, with a weight for each row; equal probabilities count half."""
        positive = np.bincount(self._equal, weights * self._positive, self._size)
        negative = np.bincount(self._equal, weights * ~self._positive, self._size)
        pairs = positive.sum() * negative.sum()
        return float(positive @ (np.cumsum(negative) - negative / 2) / pairs) if pairs else float("nan")
