"""Timing of calls, with weights that are not in the cache: medians with a confidence interval.

A busy machine only adds time, to some of the samples more than to others. There the shortest tenth tells what the quiet
machine would take (see ``undisturbed``).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice, pairwise
from statistics import median

from collage.kernel.kernel import Call
from collage.measure_db.results import Timing

Clock = Callable[[], int]
"""Tells the nanoseconds since some fixed moment. They never decrease."""

Clocked = Callable[[], int]
"""Runs a kernel and returns the nanoseconds that it took."""

_BATCH_NS = 20_000
"""Calls that are shorter are timed several at once. Reading the clock takes 50-100 ns, which is 0.4 % of this."""
_LARGEST_BATCH = 1 << 14
_HARD_FACTOR = 4
_FEWEST = 3
_LEAST_CLOCKED = 15
_LEAST_SHARE = 0.04
"""The share of the time limit that samples take at least. In a shorter time they may all lie in one burst of noise."""
_SHORTEST = 5
"""One of so many samples counts where others disturbed them."""
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


def sample_calls(
    calls: Sequence[Call],
    *,
    limit_s: float = 0.25,
    min_repeats: int = 7,
    enough: Enough = PRECISE,
    clock: Clock = time.perf_counter_ns,
) -> list[float]:
    """Nanoseconds of one call, over instances of one kernel that are called in turn.

    Instances with weights of their own keep each other's weights out of the cache, as the other kernels of
    the network will (53 convolutions that sum to 27.5 ms in loops take 32 ms in sequence).

    Sampling ends when the interval's half-width is narrow ``enough`` (but not in the first 4 % of
    ``limit_s``), or when ``limit_s`` and ``min_repeats`` are both reached, or after
    ``4 * limit_s`` seconds with 3 samples. Every instance is called once beforehand; where that takes longer
    than ``limit_s`` those calls count as samples, so a kernel of 2 s runs just 3 times.
    """
    with no_gc():
        overhead = clock_overhead(clock)
        start = clock()
        warm: list[float] = []
        for call in calls:
            warm.append(batch_ns([call], clock, overhead))
            if clock() - start > limit_s * 1e9:
                return _slow(calls, warm, start, limit_s, min_repeats, clock, overhead)
        batches = _batches(calls, clock, overhead)
        size = len(batches[0])
        found = (batch_ns(batch, clock, overhead) / size for batch in cycle(batches))
        return _enough(found, limit_s, min_repeats, enough, clock)


def sample_clocked(
    calls: Sequence[Clocked],
    *,
    limit_s: float = 0.25,
    enough: Enough = PRECISE,
    clock: Clock = time.perf_counter_ns,
) -> list[float]:
    """Nanoseconds of one call, over instances that return how many nanoseconds each call took.

    Sampling ends like that of ``sample_calls``, but after 15 samples at least, or 3 that take four times ``limit_s``.
    """
    with no_gc():
        for call in calls:
            call()
        found = (call() for call in cycle(calls))
        return _enough(found, limit_s, _LEAST_CLOCKED, enough, clock)


def samples_ns(calls: Sequence[Call], clock: Clock = time.perf_counter_ns) -> Iterator[float]:
    """Nanoseconds of one call, sample by sample, without end; short calls are timed several at once."""
    overhead = clock_overhead(clock)
    for batch in cycle(_batches(calls, clock, overhead)):
        yield batch_ns(batch, clock, overhead) / len(batch)


def _enough(found: Iterator[float], limit_s: float, least: int, enough: Enough, clock: Clock) -> list[float]:
    """Samples until their interval is narrow or the time is up; see ``sample_calls``."""
    samples: list[float] = []
    check = least
    start = clock()
    for sample in found:
        samples.append(sample)
        passed = (clock() - start) / 1e9
        count = len(samples)
        if passed >= _HARD_FACTOR * limit_s and count >= min(_FEWEST, least):
            break
        if count < least:
            continue
        if passed >= limit_s:
            break
        if count >= check and passed >= _LEAST_SHARE * limit_s:
            check = count + max(1, count // 4)
            if noise(samples) <= enough.noise_ns(median(samples)):
                break
    return samples


def _slow(
    calls: Sequence[Call],
    samples: list[float],
    start: int,
    limit_s: float,
    least: int,
    clock: Clock,
    overhead: int,
) -> list[float]:
    """Sample calls that are so slow that warming up has used the time; the median tolerates one slow first call."""
    rest = islice(cycle(calls), len(samples), None)
    for call in rest:
        passed = (clock() - start) / 1e9
        if len(samples) >= least or (
            passed >= _HARD_FACTOR * limit_s and len(samples) >= min(_FEWEST, least)
        ):
            break
        samples.append(batch_ns([call], clock, overhead))
    return samples


def undisturbed(samples: Sequence[float]) -> list[float]:
    """The shortest fifth of the samples, in the order taken, whose median is the shortest tenth. At least one.

    A program that keeps one of our cores busy has it for some milliseconds, then we have it for some. So there are
    samples which nobody disturbed, unless a call takes longer than that.
    """
    count = max(1, round(len(samples) / _SHORTEST))
    longest = sorted(samples)[count - 1]
    return [each for each in samples if each <= longest]


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


def _batches(calls: Sequence[Call], clock: Clock, overhead: int) -> list[list[Call]]:
    """Batches of calls that each take ``_BATCH_NS`` or more; together they call all instances equally often."""
    size = 1
    ring = cycle(calls)
    while size < _LARGEST_BATCH:
        taken = min(batch_ns(list(islice(ring, size)), clock, overhead) for _ in range(3))
        if taken >= _BATCH_NS:
            break
        size = min(
            _LARGEST_BATCH, max(size + 1, math.ceil(1.1 * size * _BATCH_NS / max(taken, _BATCH_NS / 8)))
        )
    count = len(calls)
    if size >= count:
        size = math.ceil(size / count) * count
    return [
        [calls[(number * size + at) % count] for at in range(size)]
        for number in range(count // math.gcd(count, size))
    ]


def batch_ns(batch: Sequence[Call], clock: Clock, overhead: int) -> float:
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


@contextmanager
def no_gc() -> Iterator[None]:
    """Turn Python's garbage collector off inside the block, since a collection takes milliseconds."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
