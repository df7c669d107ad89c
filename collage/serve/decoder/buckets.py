"""Buckets: the numbers of tokens for which a decoder is compiled. An iteration is padded to the next one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from collage.errors import UsageError
from collage.serve.runner import USUAL_BUCKETS

BUCKETS = USUAL_BUCKETS
"""The default buckets."""
MOST_REQUESTS = 64
"""The most rows of logits of an iteration, by default."""

_CLEARLY = 0.97
"""The share of a bucket's time below which another one is faster beyond doubt."""


def checked_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """The buckets in order. Raises UsageError."""
    found = tuple(sorted(set(buckets)))
    if not found or found[0] < 1 or found[-1] > 1 << 16:
        raise UsageError(
            f"buckets are numbers of tokens from 1 to 65536, not {', '.join(map(str, buckets)) or 'none'}."
        )
    return found


def row_buckets(buckets: Sequence[int], most: int = MOST_REQUESTS) -> tuple[int, ...]:
    """The buckets for rows of logits: those of tokens up to the most requests of an iteration."""
    return tuple(each for each in buckets if each <= most) or (buckets[0],)


def fastest_buckets(buckets: Sequence[int], costs_ms: Mapping[int, float]) -> dict[int, int]:
    """The bucket in which an iteration of each bucket is fastest: itself, or a larger one that was measured faster.

    Kernels for 12 tokens may be faster than those for 8, which split the work in another way. A bucket whose time is
    not known is run itself.
    """
    found = {}
    for place, bucket in enumerate(buckets):
        own = costs_ms.get(bucket, 0.0)
        faster = [each for each in buckets[place + 1 :] if costs_ms.get(each, own) < _CLEARLY * own]
        found[bucket] = min(faster, key=costs_ms.__getitem__, default=bucket)
    return found


def bucket_for(buckets: Sequence[int], tokens: int) -> int:
    """The smallest bucket that holds so many tokens. Raises UsageError where none does."""
    place = bisect_left(buckets, tokens)
    if place == len(buckets):
        raise UsageError(f"an iteration of {tokens} tokens is larger than the largest bucket, {buckets[-1]}.")
    return buckets[place]
