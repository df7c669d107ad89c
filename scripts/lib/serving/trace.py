"""Requests as in the trace of Orca's evaluation, what came of them, and the figures of a run."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    """A request: its prompt, how many tokens its answer has, and when it arrives, in seconds from the start."""

    prompt: tuple[int, ...]
    tokens: int
    at_s: float = 0.0


@dataclass(frozen=True)
class Lengths:
    """The lengths of prompts and of answers, each uniform between two bounds."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]


ORCA = Lengths((32, 512), (1, 128))
"""The lengths of Orca's synthetic trace (OSDI'22, section 6.2)."""

MOST_TOKENS = 640
"""The most tokens of a request of any of these traces, its prompt and its answer together."""


def poisson_trace(count: int, rate: float, vocabulary: int, lengths: Lengths = ORCA, seed: int = 0) -> list[Arrival]:
    """Requests that arrive as a Poisson process of ``rate`` a second, or all at once if that is infinite.

    The n-th request of a seed is the same at every rate.
    """
    sizes, gaps = random.Random(seed), random.Random(seed + 1)
    found, at_s = [], 0.0
    for _ in range(count):
        prompt = tuple(sizes.randrange(vocabulary) for _ in range(sizes.randint(*lengths.inputs)))
        tokens = sizes.randint(*lengths.outputs)
        gap = gaps.expovariate(1.0)
        at_s += 0.0 if math.isinf(rate) else gap / rate
        found.append(Arrival(prompt, tokens, at_s))
    return found


@dataclass(frozen=True)
class Served:
    """The tokens of an answer, and when each of them came, in seconds from the start of the run."""

    arrival: Arrival
    tokens: tuple[int, ...]
    token_s: tuple[float, ...]

    @property
    def latency_s(self) -> float:
        """The time from the arrival to the last token, divided by the tokens of the answer, as in Orca's Figure 10."""
        return (self.token_s[-1] - self.arrival.at_s) / len(self.token_s)


@dataclass(frozen=True)
class Figures:
    """The figures of a run. The latency is the median over requests."""

    requests: int
    requests_per_s: float
    tokens_per_s: float
    latency_ms: float
    seconds: float


def pooled(runs: Sequence[Sequence[Served]]) -> Figures:
    """The figures of several runs of the same rate: rates over their times together, latencies over all requests."""
    served = [each for run in runs for each in run]
    seconds = sum(max(each.token_s[-1] for each in run) for run in runs)
    return Figures(
        len(served),
        len(served) / seconds,
        sum(len(each.tokens) for each in served) / seconds,
        1e3 * statistics.median(each.latency_s for each in served),
        seconds,
    )


def agreement(found: Sequence[Served], expected: Sequence[Served]) -> float:
    """The share of tokens of greedy answers that are the same, up to and with the first one that differs.

    What comes after that has another beginning, so it says nothing.
    """
    same = compared = 0
    for one, other in zip(found, expected, strict=True):
        for mine, its in zip(one.tokens, other.tokens, strict=True):
            compared += 1
            if mine != its:
                break
            same += 1
    return same / compared if compared else float("nan")


def rate_at(latency_ms: float, points: Sequence[tuple[float, float]]) -> float | None:
    """The rate at which a latency is reached, from (rate, latency) at several rates, or None where the least has more.

    Between two rates it is interpolated. Where no rate has that latency, the largest one is a lower bound.
    """
    found = None
    ordered = sorted(points)
    for i, (rate, latency) in enumerate(ordered):
        if latency > latency_ms:
            if i == 0:
                return None
            before, low = ordered[i - 1]
            return before + (rate - before) * (latency_ms - low) / (latency - low)
        found = rate
    return found
