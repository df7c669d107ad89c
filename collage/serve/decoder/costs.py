"""Measuring how long iterations take, for each bucket of tokens."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from collage.serve.attention import BLOCK_TOKENS
from collage.serve.decoder.buckets import MOST_REQUESTS
from collage.serve.runner import Runner, Slice

_CONTEXT = 128
"""Tokens before the new ones, where the longest sequence has room for them."""


def measured_ms(
    runner: Runner, buckets: Sequence[int], samples: int, logits: bool = True
) -> dict[int, float]:
    """The median time of an iteration in milliseconds, for each bucket, with warm caches.

    With ``logits`` it is one of streams: the tokens are those of as many requests as there can be, up to 64, and each
    request has a row of logits. Without, they are a chunk of one prompt. The streams beside a chunk then cost what the
    two differ by at their number: their logits, and reading their keys and values.
    """
    requests = MOST_REQUESTS if logits else 1
    found = {}
    for tokens in buckets:
        slices = [each._replace(wants_logits=logits) for each in iteration_of(runner, tokens, requests)]
        times = []
        for _ in range(samples + 1):
            began = time.perf_counter()
            runner.step(slices)
            times.append(time.perf_counter() - began)
        found[tokens] = statistics.median(times[1:]) * 1000
    return found


def iteration_of(runner: Runner, tokens: int, requests: int = MOST_REQUESTS) -> list[Slice]:
    """Slices with that many tokens, of that many requests or fewer, which share blocks where the cache has few.

    Sharing them changes no time.
    """
    requests = min(tokens, requests)
    random = np.random.default_rng(0)
    slices = []
    for number in range(requests):
        count = tokens * (number + 1) // requests - tokens * number // requests
        start = max(0, min(_CONTEXT, runner.max_length - count))
        needed = -(-(start + count) // BLOCK_TOKENS)
        blocks = tuple((number * needed + i) % runner.block_count for i in range(needed))
        ids = tuple(random.integers(0, runner.vocabulary, count).tolist())
        slices.append(Slice(ids, start, blocks, True))
    return slices
