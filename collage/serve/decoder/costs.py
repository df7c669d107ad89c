"""Measuring how long iterations take, for each bucket of tokens."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from collage.serve.attention import BLOCK_TOKENS
from collage.serve.decoder.buckets import MOST_REQUESTS
from collage.serve.runner import Runner, Slice

K = TypeVar("K")

CONTEXT = 128
"""Tokens before the new ones, where the longest sequence has room for them."""


def measured_ms(
    runner: Runner, buckets: Sequence[int], samples: int
) -> tuple[dict[int, float], dict[int, float]]:
    """The median times in milliseconds of an iteration of streams, and of one of a chunk, for each bucket.

    In an iteration of streams the tokens are those of as many requests as there can be, up to 64, and each request has
    a row of logits. A chunk is of one prompt, without logits. The streams beside a chunk then cost what the two differ
    by at their number: their logits, and reading their keys and values. So all of them take turns: where the machine is
    slow for a while it is so for all.
    """
    streams = {(n, True): iteration_of(runner, n) for n in buckets}
    chunks = {
        (n, False): [each._replace(wants_logits=False) for each in iteration_of(runner, n, 1)]
        for n in buckets
    }
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


def iteration_of(
    runner: Runner, tokens: int, requests: int = MOST_REQUESTS, context: int = CONTEXT
) -> list[Slice]:
    """Slices with that many tokens, of that many requests or fewer, which share blocks where the cache has few.

    Sharing them changes no time. There are more requests where the longest sequence is shorter than that. ``context``
    tokens are before the new ones, where the longest sequence has room for them.
    """
    requests = min(tokens, max(requests, -(-tokens // runner.max_length)))
    random = np.random.default_rng(0)
    slices = []
    for number in range(requests):
        count = tokens * (number + 1) // requests - tokens * number // requests
        start = max(0, min(context, runner.max_length - count))
        needed = -(-(start + count) // BLOCK_TOKENS)
        blocks = tuple((number * needed + i) % runner.block_count for i in range(needed))
        ids = tuple(random.integers(0, runner.vocabulary, count).tolist())
        slices.append(Slice(ids, start, blocks, True))
    return slices
