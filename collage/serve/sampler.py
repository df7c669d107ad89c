"""Choosing the next tokens from logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collage.serve.choice import HOW, Chooser, addresses
from collage.serve.sampling import Sampling

_MOST_TOP_K = 2**31
"""More tokens than any vocabulary has. A request may ask for more than a C integer holds."""
_COLDEST = 1e-5
"""Temperatures below this are 0: the division by them would leave the range of numbers."""


class Logprobs(NamedTuple):
    """The log probability of a token, and the likeliest tokens with theirs, the likeliest first."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class Sampler:
    """What one request chooses by. Its random numbers are its own, so they do not depend on what else runs."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int] = (), ends: Iterable[int] = ()) -> None:
        """``prompt`` has the tokens before the answer, and ``ends`` those that end it."""
        self.sampling = sampling
        seed = sampling.seed
        self._random = np.random.default_rng(None if seed is None else seed % 2**64)
        self._draws = sampling.temperature >= _COLDEST
        scale = 1 / sampling.temperature if self._draws else 0.0
        self.fixed = None if self._draws else HOW.pack(scale, 1.0, 0.0, 0.0, 0)
        """What ``how`` returns, for a request that draws nothing."""
        self._numbers = scale, sampling.top_p, sampling.min_p
        self._top_k = min(sampling.top_k, _MOST_TOP_K)
        self._counts: Counter[int] = Counter()
        self._counted = bool(sampling.presence_penalty or sampling.frequency_penalty)
        repeats = sampling.repetition_penalty != 1
        self._repeated = set(prompt) if repeats else None
        self._banned = list(ends)
        self._left = sampling.min_tokens if self._banned else 0
        self.plain = not (self._counted or repeats or self._left or sampling.logit_bias) and (
            sampling.logprobs is None
        )
        """Whether logits are taken as they are, and nothing is told of them."""

    def how(self) -> bytes:
        """How the next token is chosen, as the struct ``HOW``."""
        if self.fixed is not None:
            return self.fixed
        return HOW.pack(*self._numbers, self._random.random(), self._top_k)

    def adjusted(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A row of logits with penalties and biases, or the row itself where there are none."""
        asked = self.sampling
        if not (asked.logit_bias or self._counts or self._repeated or self._left):
            return logits
        found: NDArray[np.float32] = logits.copy()
        if self._repeated:
            ids = np.fromiter(self._repeated, np.int64, len(self._repeated))
            penalty = np.float32(asked.repetition_penalty)
            found[ids] = np.where(found[ids] > 0, found[ids] / penalty, found[ids] * penalty)
        for token, count in self._counts.items():
            found[token] -= asked.presence_penalty + asked.frequency_penalty * count
        for token, bias in asked.logit_bias:
            found[token] += bias
        if self._left:
            found[[each for each in self._banned if 0 <= each < len(found)]] = -np.inf
        return found

    def took(self, token: int) -> None:
        """Take notice of the token that was chosen."""
        if self._counted:
            self._counts[token] += 1
        if self._repeated is not None:
            self._repeated.add(token)
        self._left = max(self._left - 1, 0)


def _likeliest(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The ids of the largest logits, the largest first, equal ones by id."""
    if count < len(logits):
        # All logits that equal the last one are candidates, so that equal ones are chosen by id.
        least = np.partition(logits, len(logits) - count)[len(logits) - count]
        ids = np.flatnonzero(logits >= least)
    else:
        ids = np.arange(len(logits))
    order = np.lexsort((ids, -logits[ids]))
    return ids[order[:count]]


def log_probabilities(logits: NDArray[np.float32], token: int, count: int) -> Logprobs:
    """The log probability of a token, and those of the ``count`` likeliest ones."""
    top = float(logits.max())
    shift = top + float(np.log(np.exp(logits - np.float32(top)).sum(dtype=np.float64)))
    best: Iterable[int] = _likeliest(logits, min(count, len(logits))) if count else ()
    return Logprobs(
        float(logits[token]) - shift, tuple((int(each), float(logits[each]) - shift) for each in best)
    )


def choose_all(
    chooser: Chooser, samplers: Sequence[Sampler], logits: NDArray[np.float32]
) -> list[tuple[int, Logprobs | None] | None]:
    """The choices for all rows of an iteration, None where the logits are not numbers.

    Log probabilities are those of the model's own logits, before biases, penalties and temperature.
    """
    logits = np.ascontiguousarray(logits, np.float32)
    rows = addresses(logits)
    others = [at for at, each in enumerate(samplers) if not each.plain]
    adjusted = [samplers[at].adjusted(logits[at]) for at in others]
    for at, row in zip(others, adjusted, strict=True):
        rows[at] = row.ctypes.data
    tokens = chooser.choose(rows, b"".join([each.fixed or each.how() for each in samplers]))
    found: list[tuple[int, Logprobs | None] | None] = [
        (token, None) if token >= 0 else None for token in tokens
    ]
    for at in others:
        if tokens[at] >= 0:
            found[at] = _told(samplers[at], tokens[at], logits[at])
    return found


def _told(sampler: Sampler, token: int, logits: NDArray[np.float32]) -> tuple[int, Logprobs | None]:
    sampler.took(token)
    count = sampler.sampling.logprobs
    return token, None if count is None else log_probabilities(logits, token, count)
