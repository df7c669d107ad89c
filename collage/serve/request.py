"""What is sent to an engine, what can never be served, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Protocol

from collage.errors import InputError
from collage.serve.sampling import Logprobs, Sampling


@dataclass(frozen=True)
class Request:
    """A prompt and what to do with it.

    ``leader`` is the id of a request with the same prompt that was sent before, whose blocks are shared. ``priority``
    is lower for what matters more: each step is worth ten seconds of waiting. ``timeout_s`` bounds the time until the
    answer is complete. Only requests with the same ``cache_salt`` share blocks.
    """

    id: int
    prompt: tuple[int, ...]
    sampling: Sampling
    leader: int | None = None
    priority: int = 0
    timeout_s: float | None = None
    cache_salt: str = ""


def answers_to(first: Request, n: int, new_id: Callable[[], int]) -> list[Request]:
    """A request and the ones for ``n - 1`` more answers to its prompt, which wait for its blocks.

    Seeds count up from its own, and go on with 0 after 2**64 - 1.
    """
    requests = [first]
    for i in range(1, n):
        seed = None if first.sampling.seed is None else (first.sampling.seed + i) % 2**64
        sampling = replace(first.sampling, seed=seed)
        requests.append(replace(first, id=new_id(), sampling=sampling, leader=first.id))
    return requests


class Finish(str, Enum):
    """Why an answer has ended; the first two are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"


class Event(NamedTuple):
    """What happened to a request in an iteration: a token, the end, or both. ``error`` is set when it failed.

    ``cut`` says that the token has completed a stop text, so that it is part of the text up to that.
    """

    id: int
    token: int | None = None
    logprobs: Logprobs | None = None
    finish: Finish | None = None
    cached: int = 0
    error: str = ""
    cut: bool = False


class RefusedError(Exception):
    """The engine has as many waiting requests as it may have."""


class Stats(NamedTuple):
    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    block_count: int = 0
    iterations: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0
    expired: int = 0
    cancelled: int = 0
    failed: int = 0
    scheduler_s: float = 0.0
    busy_s: float = 0.0


class IterationRecord(NamedTuple):
    """The tokens of an iteration, and the seconds that it took."""

    tokens: int
    seconds: float


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
                raise InputError(f"{field}: there is no token {token}; the vocabulary is 0 to {runner.vocabulary - 1}.")
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
        raise InputError(f"priority is {request.priority}; it must be from -{MAX_PRIORITY} to {MAX_PRIORITY}.")
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise InputError(f"the timeout is {request.timeout_s} s; it must be above 0.")
