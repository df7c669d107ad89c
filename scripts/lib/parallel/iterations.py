"""Decode iterations of some sequences with many cached tokens, and how long they take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

from collage.serve.attention import BLOCK_TOKENS
from collage.serve.runner import Runner, Slice


def blocks_for(batch: int, cached: int) -> int:
    """The blocks of the cache for so many sequences with so many tokens and one more."""
    return batch * -(-(cached + 1) // BLOCK_TOKENS)


def decode(batch: int, cached: int, first: int = 0) -> list[Slice]:
    """One new token of each sequence. Blocks of the sequences follow each other."""
    each = blocks_for(1, cached)
    return [
        Slice(
            (3 + number,),
            cached,
            tuple(range((first + number) * each, (first + number + 1) * each)),
            True,
        )
        for number in range(batch)
    ]


def times_ms(runner: Runner, batches: Sequence[Sequence[Slice]], rounds: int) -> list[float]:
    """The milliseconds between the ends of iterations, of which as many as there are batches are in flight.

    The first iterations are not counted.
    """
    flight = len(batches)
    with ThreadPoolExecutor(flight) as pool:
        waiting: list[Future[object]] = [pool.submit(runner.step, each) for each in batches]
        ends = []
        for turn in range(flight + rounds):
            waiting.pop(0).result()
            ends.append(time.perf_counter())
            waiting.append(pool.submit(runner.step, batches[turn % flight]))
        for each in waiting:
            each.result()
    ends = ends[flight - 1 :]
    return [1e3 * (after - before) for before, after in pairwise(ends)]


def median_ms(times: Sequence[float]) -> float:
    """The median of the times."""
    return statistics.median(times)
