"""Checks of a request before it enters the engine: what can never be served is refused at once."""

from __future__ import annotations

from typing import Protocol

from collage.errors import InputError
from collage.serve.request import Request

MAX_PRIORITY = 100


class Sizes(Protocol):
    """The sizes of a model and its cache; a runner has them."""

    @property
    def block_tokens(self) -> int: ...
    @property
    def block_count(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...


def check_request(request: Request, runner: Sizes) -> None:
    """Raise InputError when the request does not fit the model or its cache, or names tokens that there are not.

    This closes the first hole of Orca's Algorithm 1: a request with more slots than there are would block it for ever.
    """
    prompt, sampling = request.prompt, request.sampling
    if not prompt:
        raise InputError("the prompt is empty; give at least one token.")
    if not 0 <= min(prompt) <= max(prompt) < runner.vocabulary:
        wrong = next(each for each in prompt if not 0 <= each < runner.vocabulary)
        raise InputError(f"the prompt has the token {wrong}; the vocabulary is 0 to {runner.vocabulary - 1}.")
    named = {
        "stop_token_ids": sampling.stop_token_ids,
        "logit_bias": [token for token, _ in sampling.logit_bias],
    }
    for field, tokens in named.items():
        for token in tokens:
            if not 0 <= token < runner.vocabulary:
                raise InputError(
                    f"{field}: there is no token {token}; the vocabulary is 0 to {runner.vocabulary - 1}."
                )
    length = len(prompt) + sampling.max_tokens
    if length > runner.max_length:
        raise InputError(
            f"the prompt has {len(prompt)} tokens and max_tokens is {sampling.max_tokens}, together {length}; "
            f"this model's most is {runner.max_length}."
        )
    slots = runner.block_count * runner.block_tokens
    if length > slots:
        raise InputError(
            f"the prompt has {len(prompt)} tokens and max_tokens is {sampling.max_tokens}, together {length}; the "
            f"cache has room for {slots}. Give the server more blocks, or ask for less."
        )
    if abs(request.priority) > MAX_PRIORITY:
        raise InputError(
            f"priority is {request.priority}; it must be from -{MAX_PRIORITY} to {MAX_PRIORITY}."
        )
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise InputError(f"the timeout is {request.timeout_s} s; it must be above 0.")
