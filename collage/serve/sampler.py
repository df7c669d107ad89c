"""Choosing the next tokens from logits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collage.serve.sampling import Sampling

_SPAN = 256
_COLDEST = 1e-5
"""Temperatures below this are 0: the division by them would leave the range of numbers."""


class Logprobs(NamedTuple):
    """The log probability of a token, and the likeliest tokens with theirs, the likeliest first."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class NotANumberError(ValueError):
    """The model has returned logits that are not numbers, of which none can be chosen."""


class Sampler:
    """The choices of one request. Its random numbers are its own, so they do not depend on what else runs."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        seed = sampling.seed
        self._random = np.random.default_rng(None if seed is None else seed % 2**64)
        self._counts: Counter[int] = Counter()
        self.plain = (
            sampling.temperature < _COLDEST
            and sampling.logprobs is None
            and not (sampling.logit_bias or sampling.presence_penalty or sampling.frequency_penalty)
        )
        """Whether the likeliest token is taken and nothing else is asked for."""

    def choose(self, logits: NDArray[np.float32]) -> tuple[int, Logprobs | None]:
        """Choose a token from a row of logits. Raises NotANumberError.

        Log probabilities are those of the model's own logits, before biases, penalties and temperature.
        """
        asked = self.sampling
        adjusted = self._adjusted(logits)
        token = int(np.argmax(adjusted))
        if not np.isfinite(adjusted[token]):
            raise NotANumberError
        if asked.temperature >= _COLDEST:
            token = self._drawn(adjusted)
        if asked.presence_penalty or asked.frequency_penalty:
            self._counts[token] += 1
        return token, None if asked.logprobs is None else log_probabilities(logits, token, asked.logprobs)

    def _adjusted(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        asked = self.sampling
        if not (asked.logit_bias or self._counts):
            return logits
        adjusted: NDArray[np.float32] = logits.copy()
        for token, count in self._counts.items():
            adjusted[token] -= asked.presence_penalty + asked.frequency_penalty * count
        for token, bias in asked.logit_bias:
            adjusted[token] += bias
        return adjusted

    def _drawn(self, logits: NDArray[np.float32]) -> int:
        """Draw a token by the probabilities of those that top-k and top-p keep."""
        asked = self.sampling
        draw = self._random.random()
        weights = np.exp((logits - logits.max()) / np.float32(asked.temperature))
        ids = np.arange(len(weights))
        if asked.top_k and asked.top_k < len(weights):
            least = np.partition(weights, len(weights) - asked.top_k)[len(weights) - asked.top_k]
            ids = _largest(weights, float(least), asked.top_k)
            weights = weights[ids]
        if asked.top_p < 1:
            total = float(weights.sum(dtype=np.float64))
            # Tokens below the cut have at most 1 - top_p together, so all tokens that top-p keeps are above it.
            above = weights[weights >= (1 - asked.top_p) * total / len(weights)]
            above = np.sort(above)[::-1]
            sums = np.cumsum(above, dtype=np.float64)
            count = min(int(np.searchsorted(sums, asked.top_p * total)) + 1, len(above))
            kept = _largest(weights, float(above[count - 1]), count)
            ids, weights = ids[kept], weights[kept]
        return int(ids[_drawn_from(weights, draw)])


def _largest(weights: NDArray[np.float32], least: float, count: int) -> NDArray[np.intp]:
    """The indices of the ``count`` largest weights, of which the last is ``least``; of equal ones, the first ones."""
    above = np.flatnonzero(weights > least)
    equal = np.flatnonzero(weights == least)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _drawn_from(weights: NDArray[np.float32], draw: float) -> int:
    """The index that a number from 0 to 1 draws. Sums of spans are searched first, as a running sum takes longer."""
    starts = np.arange(0, len(weights), _SPAN)
    spans = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    wanted = draw * spans[-1]
    span = min(int(np.searchsorted(spans, wanted, side="right")), len(spans) - 1)
    before = spans[span - 1] if span else 0.0
    inside = np.cumsum(weights[starts[span] : starts[span] + _SPAN], dtype=np.float64)
    at = int(np.searchsorted(inside, wanted - before, side="right"))
    return int(starts[span]) + min(at, len(inside) - 1)


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
    samplers: list[Sampler], logits: NDArray[np.float32]
) -> list[tuple[int, Logprobs | None] | None]:
    """The choices for all rows of an iteration, None where the logits are not numbers."""
    best: list[int] = logits.argmax(axis=1).tolist()
    return [
        (token, None)
        if sampler.plain and math.isfinite(logits.item(row, token))
        else _choice(sampler, logits[row])
        for row, (sampler, token) in enumerate(zip(samplers, best, strict=True))
    ]


def _choice(sampler: Sampler, logits: NDArray[np.float32]) -> tuple[int, Logprobs | None] | None:
    try:
        return sampler.choose(logits)
    except NotANumberError:
        return None
