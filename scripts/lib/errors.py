"""Errors of outputs. What is no number counts as infinitely wrong: ``max`` loses a NaN behind any other number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np


def largest(errors: Iterable[float]) -> float:
    """The largest of the errors, 0 where there are none, and infinity where one of them is not finite."""
    found = [*errors]
    return max(found, default=0.0) if all(map(math.isfinite, found)) else math.inf


def scaled_error(actual: Any, expected: Any) -> float:
    """The largest error as a share of the output's largest finite magnitude, or as it is where that is 0.

    NaN and infinities must be the same and at the same places. Otherwise, and for another shape, it is infinite.
    """
    found: Any = np.asarray(actual, np.float64)
    wanted: Any = np.asarray(expected, np.float64)
    if found.shape != wanted.shape:
        return math.inf
    with np.errstate(all="ignore"):
        equal = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        distance: Any = np.where(equal, 0.0, np.abs(found - wanted))
        scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    return largest([float(distance.max(initial=0.0)) / (scale or 1.0)])
