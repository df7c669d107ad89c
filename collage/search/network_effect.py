"""What the network does to the time of its kernels: on the whole they take longer in it than they take alone.

A kernel that is timed alone runs again and again, in the moments when the cores are fast. In the network its code and
its weights come from an outer cache, and the cores are as fast as they happen to be. Only kernels that were placed are
timed there. If they alone were charged for it, any kernel that was not placed yet would seem faster, the search would
go from one placement to the next, and it would choose too many short kernels. So all are charged what is typical.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_FEWEST = 12
_PASSES = 5
_OUTLIER = 3.0
"""The number of standard deviations, of logarithms, beyond which a launch tells nothing about the others."""
_OF_MEDIAN = 1.4826
"""A standard deviation, as a multiple of the median of the deviations."""
_ROUNDING = 1e-9
_LEAST_US = 1e-3
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 4.0


@dataclass(frozen=True, slots=True)
class NetworkEffect:
    """A kernel that takes ``t`` microseconds alone typically takes ``factor * t + launch_us`` in the network."""

    factor: float = 1.0
    launch_us: float = 0.0

    def in_network_us(self, alone_us: float) -> float:
        """The typical time in the network, in microseconds. What takes no time alone takes none there."""
        return self.factor * alone_us + self.launch_us if alone_us > 0 else 0.0

    def alone_us(self, in_network_us: float) -> float:
        """The time alone of a kernel that typically takes so many microseconds in the network."""
        return max(0.0, (in_network_us - self.launch_us) / self.factor)


NO_EFFECT = NetworkEffect()


def network_effect(alone_us: Sequence[float], in_network_us: Sequence[float]) -> NetworkEffect:
    """The effect that explains the times of launches best: the least squares of relative errors, without outliers.

    Fewer than 12 launches tell nothing. There each of them may be an exception, and the search may as well try all.
    """
    timed = [(alone, us) for alone, us in zip(alone_us, in_network_us, strict=True) if alone > 0 and us > 0]
    if len(timed) < _FEWEST:
        return NO_EFFECT
    alone, found = np.array(timed).T
    factor = float(np.clip(np.median(found / alone), _LEAST_FACTOR, _MOST_FACTOR))
    return _line(alone, found) or NetworkEffect(factor)


def _line(alone: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> NetworkEffect | None:
    """The line through the times, or None where launches do not seem to cost anything, or the factor makes no sense."""
    kept = _usual(np.log(found / alone))
    factor = launch_us = 0.0
    for _ in range(_PASSES):
        if np.count_nonzero(kept) < _FEWEST:
            return None
        x, y = alone[kept], found[kept]
        rows = np.stack([x / y, 1 / y], axis=1)
        (factor, launch_us), *_ = np.linalg.lstsq(rows, np.ones(len(y)), rcond=None)
        kept = _usual(np.log(found / np.maximum(factor * alone + launch_us, _LEAST_US)))
    if not (_LEAST_FACTOR <= factor <= _MOST_FACTOR and launch_us >= 0):
        return None
    return NetworkEffect(float(factor), float(launch_us))


def _usual(errors: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which of the logarithms are no outliers."""
    deviations = np.abs(errors - np.median(errors))
    most = _OUTLIER * _OF_MEDIAN * float(np.median(deviations)) + _ROUNDING
    return np.asarray(deviations <= most)
