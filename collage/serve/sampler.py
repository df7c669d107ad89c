"""Choosing the next tokens from logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collage.serve.sampling import Sampling

_FIRST_TRY = 256
"""Top-p looks at this many of the likeliest tokens first, since they nearly always hold the probability it asks for."""

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

    @property
    def plain(self) -> bool:
        """Whether the likeliest token is taken and nothing else is asked for."""
        asked = self.sampling
        return (
            asked.temperature < _COLDEST
            and asked.logprobs is None
            and not (asked.logit_bias or asked.presence_penalty or asked.frequency_penalty)
        )

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
        asked = self.sampling
        draw = self._random.random()
        if asked.top_k and asked.top_k < len(logits):
            ids = _likeliest(logits, asked.top_k)
        elif asked.top_p < 1:
            ids = self._enough(logits)
        else:
            ids = np.arange(len(logits))
        scaled = logits[ids].astype(np.float64)
        scaled = (scaled - scaled.max()) / asked.temperature
        weights = np.exp(scaled)
        sums = np.cumsum(weights)
        if asked.top_p < 1:  # in order of probability: the fewest tokens that have top_p together
            total = sums[-1] if asked.top_k else self._total(logits)
            sums = sums[: int(np.searchsorted(sums, asked.top_p * total)) + 1]
        chosen = int(np.searchsorted(sums, draw * sums[-1], side="right"))
        return int(ids[min(chosen, len(sums) - 1)])

    def _total(self, logits: NDArray[np.float32]) -> float:
        """The sum of all weights, in the scale in which the likeliest token has weight 1."""
        scaled = logits.astype(np.float64)
        return float(np.exp((scaled - scaled.max()) / self.sampling.temperature).sum())

    def _enough(self, logits: NDArray[np.float32]) -> NDArray[np.intp]:
        """The likeliest tokens, in order, that hold the probability top_p."""
        count, wanted = _FIRST_TRY, self.sampling.top_p * self._total(logits)
        top = float(logits.max())
        while count < len(logits):
            ids = _likeliest(logits, count)
            scaled = (logits[ids].astype(np.float64) - top) / self.sampling.temperature
            if np.exp(scaled).sum() >= wanted:
                return ids
            count *= 8
        return _likeliest(logits, len(logits))


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
    wide = logits.astype(np.float64)
    top = wide.max()
    shift = top + np.log(np.exp(wide - top).sum())
    best: Iterable[int] = _likeliest(logits, min(count, len(logits))) if count else ()
    return Logprobs(
        float(wide[token] - shift), tuple((int(each), float(wide[each] - shift)) for each in best)
    )


def choose_all(
    samplers: list[Sampler], logits: NDArray[np.float32]
) -> list[tuple[int, Logprobs | None] | None]:
    """The choices for all rows of an iteration, None where the logits are not numbers."""
    found: list[tuple[int, Logprobs | None] | None] = []
    best = np.argmax(logits, axis=1)
    for row, sampler in enumerate(samplers):
        token = int(best[row])
        if sampler.plain:
            found.append((token, None) if np.isfinite(logits[row, token]) else None)
            continue
        try:
            found.append(sampler.choose(logits[row]))
        except NotANumberError:
            found.append(None)
    return found
