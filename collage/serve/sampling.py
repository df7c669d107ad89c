"""What a request asks for: how tokens are chosen, and when its answer ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collage.errors import UsageError

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
