"""What error other inputs than the samples will have, as far as the spread of the samples' errors tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

_FEWEST = 4
"""With fewer samples nothing is known of the spread."""
_SHARE = 0.995
"""The share of other inputs whose errors are to be below the bound: of 20, all in nine cases of ten."""
_LEAST = 1e-3
"""Errors below this share of the largest one are taken for that: it does not matter how small they are."""


def foreseen(errors: Sequence[float]) -> float:
    """The error that 995 of 1,000 other inputs stay below, if errors are log-normal; at least the samples' largest.

    It is the upper prediction bound of one more error. Where the samples' errors are alike, as those of networks with
    many outputs, it is little more than the largest one of a dozen. Where they differ by orders of magnitude, it is
    several times as much.
    """
    largest = max(errors, default=0.0)
    count = len(errors)
    if count < _FEWEST or largest == 0 or not math.isfinite(largest):
        return largest
    logs = [math.log(max(each, _LEAST * largest)) for each in errors]
    z = NormalDist().inv_cdf(_SHARE)
    free = count - 1
    quantile = (  # Student's, by the first terms of its expansion
        z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    )
    return max(largest, math.exp(fmean(logs) + quantile * stdev(logs) * math.sqrt(1 + 1 / count)))
