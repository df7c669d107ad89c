"""What error other inputs than the samples will have, as far as the spread of the samples' errors tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

import numpy as np

EDITION = 1
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
_OTHERS, _MOST_OTHERS = 0.5, 2.0
"""How much the spread of another plan's errors counts beside that of the plan's own, and that of all others."""


def foreseen(errors: Sequence[float], alike: Sequence[Sequence[float]] = ()) -> float:
    """The error that 995 of 1,000 other inputs stay below, if errors are log-normal; at least the samples' largest.

    It is the upper prediction bound of one more error. Where the samples' errors are alike, as those of networks with
    many outputs, it is little more than the largest one of a dozen. Where they differ by orders of magnitude, it is
    several times as much.

    The spread is that of the larger errors. Where one number of the outputs counts most, such as the score of the
    likeliest class, roundings that cancel each other make its error any times smaller, and by no luck it gets as much
    larger. So the smallest ones are taken for as large as the least of the others, and what the mean and the standard
    deviation of normal numbers lose by that is made up for.

    ``alike`` are errors of other plans of the same model on the same samples. How far errors are spread is a matter of
    the outputs more than of the plan, so theirs count, too: each half as much as the plan's own, and all together at
    most twice as much. That way a plan is not taken for the best because the spread of its errors is small by luck. No
    sample is new in them, so that the bound keeps its distance.
    """
    largest = max(errors, default=0.0)
    count = len(errors)
    if count < _FEWEST or largest == 0 or not math.isfinite(largest):
        return largest
    cut = _cut(errors)
    others = [stdev(_cut(each)) ** 2 for each in alike if len(each) == count and 0 < max(each) < math.inf]
    weight = min(_OTHERS * len(others), _MOST_OTHERS)
    square = (stdev(cut) ** 2 + (weight * fmean(others) if others else 0.0)) / (1 + weight)
    spread = math.sqrt(square) / _CUT_DEVIATION
    middle = fmean(cut) - spread * _CUT_MEAN
    z = _NORMAL.inv_cdf(_SHARE)
    free = _KNOWN * (count - 1)
    quantile = (  # Student's, by the first terms of its expansion
        z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    )
    return max(largest, math.exp(middle + quantile * spread * math.sqrt(1 + 1 / count)))


def _cut(errors: Sequence[float]) -> list[float]:
    """The logarithms of errors; the smallest ones are as large as the least of the others."""
    logs = [math.log(max(each, _LEAST * max(errors))) for each in errors]
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
