"""Buckets, the numbers of tokens for which a decoder is compiled, and how long iterations of each take."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from collage.errors import UsageError
from collage.serve.attention import BLOCK_TOKENS
from collage.serve.runner import USUAL_BUCKETS, Runner, Slice

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
    """The smallest bucket that holds so many tokens. Raises UsageError if none does."""
    place = bisect_left(buckets, tokens)
    if place == len(buckets):
        raise UsageError(f"an iteration of {tokens} tokens is larger than the largest bucket, {buckets[-1]}.")
    return buckets[place]


K = TypeVar("K")

CONTEXT = 128
"""Tokens before the new ones, where the longest sequence has room for them."""


def measured_ms(runner: Runner, buckets: Sequence[int], samples: int) -> tuple[dict[int, float], dict[int, float]]:
    """The median times in milliseconds of an iteration of streams, and of one of a chunk, for each bucket.

    In an iteration of streams the tokens are those of as many requests as there can be, up to 64, and each request has
    a row of logits. A chunk is of one prompt, without logits. The streams beside a chunk then cost what the two differ
    by at their number: their logits, and reading their keys and values. So all of them take turns: where the machine is
    slow for a while it is so for all.
    """
    streams = {(n, True): iteration_of(runner, n) for n in buckets}
    chunks = {(n, False): [each._replace(wants_logits=False) for each in iteration_of(runner, n, 1)] for n in buckets}
    found = median_ms(runner, {**streams, **chunks}, samples)
    return {n: found[n, True] for n in buckets}, {n: found[n, False] for n in buckets}


def streams_ms(runner: Runner, tokens: int, samples: int) -> float:
    """The median time in milliseconds of an iteration of streams with so many tokens; see ``measured_ms``."""
    return median_ms(runner, {tokens: iteration_of(runner, tokens)}, samples)[tokens]


def median_ms(runner: Runner, iterations: Mapping[K, Sequence[Slice]], samples: int) -> dict[K, float]:
    """The median milliseconds of each iteration, with warm caches: it runs once before each sample.

    After an iteration of another bucket a small one takes up to twice as long.
    """
    times: dict[K, list[float]] = {each: [] for each in iterations}
    for _ in range(samples):
        for each, slices in iterations.items():
            runner.step(slices)
            began = time.perf_counter()
            runner.step(slices)
            times[each].append(time.perf_counter() - began)
    return {each: statistics.median(taken) * 1000 for each, taken in times.items()}


def iteration_of(runner: Runner, tokens: int, requests: int = MOST_REQUESTS) -> list[Slice]:
    """Slices with that many tokens, of that many requests or fewer, behind other tokens if there is room for them.

    There are more requests if the longest sequence is shorter than that. They share blocks if the cache has few, which
    changes no time.
    """
    requests = min(tokens, max(requests, -(-tokens // runner.max_length)))
    random = np.random.default_rng(0)
    slices = []
    for number in range(requests):
        count = tokens * (number + 1) // requests - tokens * number // requests
        start = max(0, min(CONTEXT, runner.max_length - count))
        needed = -(-(start + count) // BLOCK_TOKENS)
        blocks = tuple((number * needed + i) % runner.block_count for i in range(needed))
        ids = tuple(random.integers(0, runner.vocabulary, count).tolist())
        slices.append(Slice(ids, start, blocks, True))
    return slices
