"""Ratios of times, one for each restart: their median, its bootstrap interval, and whether it keeps a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

CONFIDENCE = 0.9
_RESAMPLES = 10_000
_WIDE = 0.04
"""An interval that is wider than this share of the median to both sides calls for more restarts."""


@dataclass(frozen=True)
class Limits:
    """A ratio is too low if its median is below ``median``, or if its interval ends below ``high``."""

    median: float = 0.95
    high: float = 0.98


ALONE, BESIDE_BUSY = Limits(), Limits(0.93, 0.97)


@dataclass(frozen=True)
class Ratios:
    """Ratios of two contenders' times; the interval is the 90 % bootstrap interval of their median."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        """The median over the restarts."""
        return median(self.values)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The interval's ends. The same values always give the same ends."""
        found: Any = np.asarray(self.values, np.float64)
        picks = np.random.default_rng(0).integers(len(found), size=(_RESAMPLES, len(found)))
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(np.median(found[picks], axis=1), (tail, 1 - tail))
        return float(low), float(high)

    @property
    def wide(self) -> bool:
        """Whether the interval is too wide for a verdict."""
        low, high = self.interval
        return high - low > 2 * _WIDE * self.median

    def below(self, limits: Limits) -> bool:
        """Whether the ratio is too low."""
        return self.median < limits.median or self.interval[1] < limits.high

    def to_json(self) -> dict[str, Any]:
        """The median, the interval and the values, rounded."""
        low, high = self.interval
        every = [round(each, 4) for each in self.values]
        return {
            "median": round(self.median, 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "restarts": every,
        }
