"""Requests and when they arrive, as in the trace of Orca's evaluation."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
LONG_PROMPTS = Lengths((512, 512), (64, 128))
"""Prompts of 512 tokens, with answers long enough for a time between tokens."""

MOST_TOKENS = 640
"""The most tokens of a request of any of these traces, its prompt and its answer together."""


def poisson_trace(
    count: int, rate: float, vocabulary: int, lengths: Lengths = ORCA, seed: int = 0
) -> list[Arrival]:
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


def as_message(arrivals: Sequence[Arrival]) -> list[list[Any]]:
    """The requests as values for JSON."""
    return [[list(each.prompt), each.tokens, each.at_s] for each in arrivals]


def from_message(rows: Sequence[Sequence[Any]]) -> list[Arrival]:
    """The inverse of ``as_message``."""
    return [Arrival(tuple(prompt), tokens, at_s) for prompt, tokens, at_s in rows]
