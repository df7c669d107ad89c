"""How a request chooses its tokens, and the choice of tokens from rows of logits (``native/kernels/sampling.cpp``)."""

from __future__ import annotations

import ctypes
import math
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collage.errors import CollageError, UsageError
from collage.kernel.buffers import aligned_empty
from collage.native import LaunchList, Step, Task, team_of
from collage.native.kernel_library import NOT_BUILT, library_function

MAX_LOGPROBS = 20
_MAX_TOKENS = 2**40
"""More than any model has. Numbers of hundreds of digits are no floats, and cannot be printed."""
_MAX_STOPS = 64
_MAX_BIASES = 1024


@dataclass(frozen=True)
class Sampling:
    """The parameters of a request.

    ``max_tokens`` is the most tokens of the answer. ``temperature`` 0 takes the likeliest token. Otherwise one is drawn
    of those that three filters keep, in this order: the ``top_k`` likeliest tokens (0: all); of these the fewest that
    have ``top_p`` of the probability (1: all); of these the ones that are at least ``min_p`` times as likely as the
    likeliest (0: all). ``seed`` makes the draws repeatable, whatever else runs.

    Logits are changed before that. Positive ones of tokens in the prompt and in the answer so far are divided by
    ``repetition_penalty``, and negative ones multiplied with it. ``presence_penalty`` and, for each time,
    ``frequency_penalty`` are taken off those of tokens in the answer so far. ``logit_bias`` is added.

    ``logprobs`` is how many of the likeliest tokens are reported with each token, None for no log probabilities at all.
    The answer ends after a token of ``stop_token_ids`` or the model's end token (unless ``ignore_eos``), which are not
    chosen among the first ``min_tokens`` tokens, and before a text of ``stop``.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0

    def __post_init__(self) -> None:
        _within("max_tokens", self.max_tokens, 1, _MAX_TOKENS)
        _within("temperature", self.temperature, 0, 100)
        _within("top_k", self.top_k, 0, math.inf)
        _within("top_p", self.top_p, 0, 1)
        _within("min_p", self.min_p, 0, 1)
        _within("repetition_penalty", self.repetition_penalty, 0.01, 100)
        _within("min_tokens", self.min_tokens, 0, self.max_tokens)
        _within("presence_penalty", self.presence_penalty, -100, 100)
        _within("frequency_penalty", self.frequency_penalty, -100, 100)
        if self.seed is not None:
            _within("seed", self.seed, -(2**63), 2**64 - 1)
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _within("the number of texts in stop", len(self.stop), 0, _MAX_STOPS)
        _within("the number of tokens in stop_token_ids", len(self.stop_token_ids), 0, _MAX_STOPS)
        _within("the number of biases in logit_bias", len(self.logit_bias), 0, _MAX_BIASES)
        for _, bias in self.logit_bias:
            _within("a bias of logit_bias", bias, -100, 100)
        if not all(self.stop):
            raise UsageError("stop has an empty text, which every answer has; leave it out.")


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        bounds = f"{least:g} or more" if math.isinf(most) else f"from {least:g} to {most:g}"
        raise UsageError(f"{name} is {value}; it must be {bounds}.")


HOW = struct.Struct("=ddddq")
"""How the token of a row is chosen: scale, top-p, min-p, draw and top-k of the C struct ``collage_sampling_choice``."""

_SPAN = 256
"""The logits of a span, as in sampling.h; each thread has room for whole spans."""
_GROWTH = 2


class Chooser:
    """Chooses tokens with the team of so many ``threads``, a row of logits on each. One thread may use it at a time."""

    def __init__(self, vocabulary: int, threads: int = 1) -> None:
        """Prepare for rows of ``vocabulary`` logits. Raises CollageError without the native kernels."""
        function = library_function("collage_sampling_choose")
        if function is None:
            raise CollageError(NOT_BUILT)
        room = -(-vocabulary // _SPAN) * _SPAN
        self._weights = aligned_empty((threads, room), "float32")
        self._batch = _Batch(weights=self._weights.ctypes.data, vocabulary=vocabulary, shares=threads)
        place = ctypes.addressof(self._batch)
        tasks = tuple(Task(function, b=place, n=share, keep=(self._batch,)) for share in range(threads))
        self._run = LaunchList(team_of(threads), [Step(tasks)])
        self._grow(1)

    def choose(self, rows: NDArray[np.int64], how: bytes) -> list[int]:
        """The token of each row, or -1 if its logits are not numbers.

        ``rows`` has the addresses of rows of float32 logits, which the caller keeps, and ``how`` a ``HOW`` for each.
        """
        count = len(rows)
        if count > len(self._tokens):
            self._grow(_GROWTH * count)
        self._batch.count = count
        self._batch.rows, self._batch.choices = rows.ctypes.data, how
        self._run()
        tokens: list[int] = self._tokens[:count].tolist()
        return tokens

    def _grow(self, count: int) -> None:
        self._tokens = np.empty(count, np.int64)
        self._batch.tokens = self._tokens.ctypes.data


def addresses(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """The address of each row of a matrix [rows, vocabulary], whose rows have their elements beside each other."""
    found: NDArray[np.int64] = logits.ctypes.data + logits.strides[0] * np.arange(len(logits), dtype=np.int64)
    return found


class _Batch(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("choices", ctypes.c_char_p),
        ("tokens", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in "count vocabulary shares".split()),
    )


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
        self.plain = not (self._counted or repeats or self._left or sampling.logit_bias) and (sampling.logprobs is None)
        """Whether logits are taken as they are, and nothing is told of them."""

    def how(self) -> bytes:
        """How the next token is chosen, as the struct ``HOW``."""
        if self.fixed is not None:
            return self.fixed
        return HOW.pack(*self._numbers, self._random.random(), self._top_k)

    def adjusted(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A row of logits with penalties and biases, or the row itself if there are none."""
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
    return Logprobs(float(logits[token]) - shift, tuple((int(each), float(logits[each]) - shift) for each in best))


def choose_all(
    chooser: Chooser, samplers: Sequence[Sampler], logits: NDArray[np.float32]
) -> list[tuple[int, Logprobs | None] | None]:
    """The choices for all rows of an iteration, None if the logits are not numbers.

    Log probabilities are those of the model's own logits, before biases, penalties and temperature.
    """
    logits = np.ascontiguousarray(logits, np.float32)
    rows = addresses(logits)
    others = [at for at, each in enumerate(samplers) if not each.plain]
    adjusted = [samplers[at].adjusted(logits[at]) for at in others]
    for at, row in zip(others, adjusted, strict=True):
        rows[at] = row.ctypes.data
    tokens = chooser.choose(rows, b"".join([each.fixed or each.how() for each in samplers]))
    found: list[tuple[int, Logprobs | None] | None] = [(token, None) if token >= 0 else None for token in tokens]
    for at in others:
        if tokens[at] >= 0:
            found[at] = _told(samplers[at], tokens[at], logits[at])
    return found


def _told(sampler: Sampler, token: int, logits: NDArray[np.float32]) -> tuple[int, Logprobs | None]:
    sampler.took(token)
    count = sampler.sampling.logprobs
    return token, None if count is None else log_probabilities(logits, token, count)
