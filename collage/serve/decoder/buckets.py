"""Buckets: the numbers of tokens for which a decoder is compiled. An iteration is padded to the next one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from collage.errors import UsageError
from collage.serve.runner import USUAL_BUCKETS

BUCKETS = USUAL_BUCKETS
"""The default buckets."""
MOST_REQUESTS = 64
"""The most rows of logits of an iteration, by default."""


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


def bucket_for(buckets: Sequence[int], tokens: int) -> int:
    """The smallest bucket that holds so many tokens. Raises UsageError where none does."""
    place = bisect_left(buckets, tokens)
    if place == len(buckets):
        raise UsageError(f"an iteration of {tokens} tokens is larger than the largest bucket, {buckets[-1]}.")
    return buckets[place]
