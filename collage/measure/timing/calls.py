"""Timing of calls, and medians of samples with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import median

from collage.measure_db.results import Timing

Clock = Callable[[], int]
"""Tells the nanoseconds since some fixed moment. They never decrease."""

Clocked = Callable[[], int]
"""Runs a kernel and returns the nanoseconds that it took."""

_BLOCKS = 10
_BLOCK_SAMPLES = 6


@dataclass(frozen=True)
class Enough:
    """How narrow the interval of a median has to be: ``share`` of the median, or ``us`` microseconds if that is more.

    Microseconds count up to ``most`` of the median. A kernel that takes a thousandth of its network's time need not be
    known to 2 %, but the next network may be a small one.
    """

    us: float = 0.0
    share: float = 0.02
    most: float = 0.1

    def noise_ns(self, median_ns: float) -> float:
        """The half-width of the interval that is enough for this median; both are in nanoseconds."""
        return max(self.share * median_ns, min(self.us * 1e3, self.most * median_ns))


PRECISE = Enough()


def summary(samples: Sequence[float]) -> Timing:
    """Statistics, in microseconds, of samples in nanoseconds in the order taken. Raises ValueError without samples."""
    _, middle, _ = median_interval(samples)
    ordered = sorted(samples)
    p90 = ordered[max(0, math.ceil(0.9 * len(ordered)) - 1)]
    return Timing(middle / 1e3, noise(samples) / 1e3, ordered[0] / 1e3, p90 / 1e3, len(ordered))


def noise(samples: Sequence[float]) -> float:
    """The half-width of the median's 95 % confidence interval, for samples in the order they were taken.

    Samples that follow each other are alike (the clock rate, a neighbour's work), so that a thousand of them
    promise a precision that the next thousand do not keep. Therefore the interval of the medians of ten
    consecutive blocks is computed, too, and the wider interval counts.
    """
    low, _, high = median_interval(samples)
    width = high - low
    if len(samples) >= _BLOCKS * _BLOCK_SAMPLES:
        edges = [len(samples) * block // _BLOCKS for block in range(_BLOCKS + 1)]
        low, _, high = median_interval([median(samples[a:b]) for a, b in pairwise(edges)])
        width = max(width, high - low)
    return width / 2


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """The lower end, median and upper end of the median's 95 % confidence interval, by order statistics.

    No assumption about the distribution is needed, whose tail is long. Fewer than 6 samples cannot give 95 %, so
    the interval spans all of them. Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    return ordered[rank], median(ordered), ordered[-1 - rank]


def ratios_of(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratios of two candidates' times in the rounds that both had."""
    return [one / other for one, other in zip(mine, theirs, strict=False)]


@cache
def _rank(count: int) -> int:
    """The number of samples to drop at either end: the most that leave the median inside with 95 %."""
    if count > 100:
        return max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    below = 0.0
    for rank in range(count):
        below += math.comb(count, rank) / 2**count
        if below > 0.025:
            return max(0, rank - 1)
    return 0


def batch_ns(batch: Sequence[Callable[[], object]], clock: Clock, overhead: int) -> float:
    """Nanoseconds of the calls, without the ``overhead`` of reading the clock."""
    start = clock()
    for call in batch:
        call()
    return max(1, clock() - start - overhead)


def clock_overhead(clock: Clock) -> int:
    """The nanoseconds that reading the clock adds to an interval, as the median of 15 readings."""
    found = []
    for _ in range(15):
        start = clock()
        found.append(clock() - start)
    return sorted(found)[7]
