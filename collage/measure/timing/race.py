"""A race against the fastest kernel so far: a few samples tell whether another kernel of the same operators is slower.

Noise only adds time. So the shortest sample is a lower bound, and decides where the kernel is slower by far. Where it
is about as fast, the median decides: a kernel that is not faster than its rival is not worth more samples. On a busy
machine the shortest of more samples decides there, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from collage.measure_db.results import Slower

_BY_FAR = ((3, 1.5), (6, 1.2))
"""Numbers of samples, and the factor on the rival's time that the shortest of them has to exceed by then."""
_LAST = 12
"""The number of samples after which the median decides."""
_FASTER = 0.95
"""A kernel that takes this share of the rival's time in one sample may well be faster. It needs no race."""
_BURST_NS = 4e6
"""Samples that span less than this many nanoseconds may all lie in one burst of somebody else's work."""


def race(samples_ns: Iterator[float], rival_us: float, patience: float = 1.0) -> Slower | None:
    """Take samples, in nanoseconds, until they show that the kernel is slower than the rival, or that it may not be.

    The rival takes ``rival_us`` microseconds. ``patience`` is above 1 on a busy machine (see ``busy``).
    """
    rival_ns = rival_us * 1e3
    samples: list[float] = []
    for count, factor in (*_BY_FAR, (_LAST, 1.0)):
        while len(samples) < count or sum(samples) < patience * _BURST_NS:
            samples.append(next(samples_ns))
            if samples[-1] < _FASTER * rival_ns:
                return None
        decides = median(samples) if count == _LAST and patience <= 1.0 else min(samples)
        if decides > factor * rival_ns:
            return Slower(min(samples) / 1e3, rival_us, len(samples))
    return None
