"""What error other inputs than the samples will have, as far as the spread of the samples' errors tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, pstdev, stdev

import numpy as np

EDITION = 3
"""That of the way in which errors are foreseen."""
_FEWEST = 4
"""With fewer samples nothing is known of the spread."""
_SHARE = 0.995
"""The share of other inputs whose errors are to be below the bound: of 20, all in nine cases of ten."""
_LEAST = 1e-3
"""Errors below this share of the largest one are taken for that: it does not matter how small they are."""
_LUCKY = 0.4
"""The share of the samples' errors, the smallest ones, of which only the count matters."""
_KNOWN = 0.75
"""The degrees of freedom that are left of the spread, as a share of those of all samples (found by simulation)."""
_COUNTS = 0.5
"""How much the evidence of another plan's errors counts, which are on the same samples."""
_APART, _PLANS = 0.1, 4.0
"""The variance between plans of the logarithm of their errors' variance, as if so many plans had shown it before."""
_ODDS = 4.0
"""How much more likely than half-normal errors are log-normal ones, before any is known."""
_EVIDENCE = 50.0
"""The largest logarithm of a ratio of likelihoods that is taken into account."""


def foreseen(errors: Sequence[float], alike: Sequence[Sequence[float]] = ()) -> float:
    """The error that 995 of 1,000 other inputs stay below, as far as the samples' errors tell; at least their largest.

    There are two models of errors, and the bound is the geometric mean of theirs, weighed by how likely either one is
    after the samples. Errors are half-normal where they are those of one number, such as the score of the likeliest
    class, to which many roundings add: these may cancel each other by any factor, and hardly ever add up to more than
    three times their usual sum. They are log-normal where some inputs have much larger errors than others.

    ``alike`` are errors of other plans of the same model on the same samples. How errors are spread is a matter of the
    outputs, too, and not of the plan alone: the more alike the spreads of all plans are, the more those of the others
    count. That way a plan is not taken for the best because the spread of its errors is small by luck. No sample is new
    in them, so that the bound keeps its distance.
    """
    largest = max(errors, default=0.0)
    count = len(errors)
    if count < _FEWEST or largest == 0 or not math.isfinite(largest):
        return largest
    others = [each for each in alike if len(each) == count and 0 < max(each) < math.inf]
    log_normal = max(largest, _log_normal(errors, others))
    half_normal = min(log_normal, max(largest, _half_normal(errors)))
    evidence = _evidence(errors) + _COUNTS * sum(_evidence(each) for each in others)
    share = 1 / (1 + _ODDS * math.exp(min(max(-evidence, -_EVIDENCE), _EVIDENCE)))
    return math.exp(share * math.log(half_normal) + (1 - share) * math.log(log_normal))


def _log_normal(errors: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    """The upper prediction bound of one more error, if their logarithms are normal.

    The spread is that of the larger errors. Roundings that cancel each other make an error any times smaller, and by no
    luck it gets as much larger. So the smallest ones are taken for as large as the least of the others, and what the
    mean and the standard deviation of normal numbers lose by that is made up for.
    """
    cut = _cut(errors)
    free = _KNOWN * (len(errors) - 1)
    spread = _shrunk(stdev(cut), [stdev(_cut(each)) for each in others], free) / _CUT_DEVIATION
    middle = fmean(cut) - spread * _CUT_MEAN
    quantile = _students(_NORMAL.inv_cdf(_SHARE), free)
    return math.exp(middle + quantile * spread * math.sqrt(1 + 1 / len(errors)))


def _shrunk(own: float, others: Sequence[float], free: float) -> float:
    """A plan's standard deviation, given those of others that were estimated with as many degrees of freedom.

    The logarithms of plans' variances are taken for normal, with a variance between plans that is itself estimated, and
    one of estimating, which is 2 over the degrees of freedom (empirical Bayes).
    """
    if not others or own == 0:
        return own
    logs = [2 * math.log(max(each, _LEAST)) for each in (own, *others)]
    middle, estimating = fmean(logs), 2 / free
    seen = sum((each - middle) ** 2 for each in logs) - (len(logs) - 1) * estimating
    between = max(0.0, _PLANS * _APART + seen) / (_PLANS + len(logs) - 1)
    trust = between / (between + estimating)
    return math.exp((trust * logs[0] + (1 - trust) * middle) / 2)


def _half_normal(errors: Sequence[float]) -> float:
    """The upper prediction bound of one more error, if they are the sizes of normal numbers around zero."""
    return _root_mean_square(errors) * _students(_NORMAL.inv_cdf((1 + _SHARE) / 2), len(errors))


def _evidence(errors: Sequence[float]) -> float:
    """The logarithm of how much likelier these errors are if they are half-normal than if they are log-normal.

    Each model has the parameters with which they are likeliest.
    """
    logs = _logs(errors)
    half_normal = math.log(math.pi / 2) / 2 + math.log(_root_mean_square(errors))
    log_normal = fmean(logs) + math.log(2 * math.pi) / 2 + math.log(max(pstdev(logs), _LEAST))
    return len(errors) * (log_normal - half_normal)


def _students(z: float, free: float) -> float:
    """The quantile of Student's distribution where that of the normal one is ``z``, by its expansion's first terms."""
    return z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)


def _root_mean_square(errors: Sequence[float]) -> float:
    return math.sqrt(fmean(each**2 for each in errors))


def _logs(errors: Sequence[float]) -> list[float]:
    return [math.log(max(each, _LEAST * max(errors))) for each in errors]


def _cut(errors: Sequence[float]) -> list[float]:
    """The logarithms of errors; the smallest ones are as large as the least of the others."""
    logs = _logs(errors)
    least = float(np.quantile(logs, _LUCKY))
    return [max(each, least) for each in logs]


def _cut_normal() -> tuple[float, float]:
    """Mean and standard deviation of a standard normal number that is at least its own quantile of ``_LUCKY``."""
    least = _NORMAL.inv_cdf(_LUCKY)
    mean = _LUCKY * least + _NORMAL.pdf(least)
    square = _LUCKY * least**2 + (1 - _LUCKY) + least * _NORMAL.pdf(least)
    return mean, math.sqrt(square - mean**2)


_NORMAL = NormalDist()
_CUT_MEAN, _CUT_DEVIATION = _cut_normal()
