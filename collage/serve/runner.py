"""What runs a decoder: the interface between the engine, which schedules, and the model, which computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from collage.errors import CollageError

USUAL_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""The numbers of tokens that decoders are compiled for by default."""


class RunnerLostError(CollageError):
    """A process that the runner needs is gone, and with it what its cache held. The runner cannot be used any more."""


class Slice(NamedTuple):
    """The part of one request in one iteration. It is a tuple, since an iteration makes many.

    ``token_ids`` are the new tokens of this iteration, and ``start`` is the position of the first of them in the
    sequence. ``blocks`` are the ids of the sequence's blocks so far, in order, and cover ``start + len(token_ids)``
    tokens. ``wants_logits`` is False for a chunk of a prefill that is not the last one.
    """

    token_ids: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    wants_logits: bool


class Runner(Protocol):
    """A decoder with a paged cache of keys and values.

    ``block_tokens`` is the number of tokens in a block of the cache, ``block_count`` the number of blocks,
    ``max_tokens`` the most tokens of one iteration, and ``max_length`` the most tokens of one sequence. A runner may
    have more attributes: ``buckets``, the numbers of tokens that it was compiled for, ``threads``, the number of
    threads that it computes with, and ``workers``, the number of iterations that it can have in flight, whose ``step``
    is then called from as many threads. One that has measured the time of a chunk of one prompt, without logits, tells
    it by ``body_ms(tokens)``. One whose processes each hold a share of the cache has ``shares``, their number: block b
    is in share b % shares. One that other processes compute for raises ``RunnerLostError`` when one of them is gone,
    and has ``when_lost``: what is called then, too, from any thread. One that knows which tokens end an answer has
    ``end_tokens``, which count if the tokenizer has none.
    """

    block_tokens: int
    block_count: int
    max_tokens: int
    max_length: int
    vocabulary: int

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        """Run one iteration. Returns the logits [wanted, vocabulary], a row for each slice that wants them, in order.

        The next iteration may overwrite them. It releases the GIL while it computes.
        """
        ...

    def cost_ms(self, tokens: int) -> float:
        """The measured time of an iteration with that many tokens, each of which has a row of logits."""
        ...

    def close(self) -> None: ...


def watch(runner: Runner, lost: Callable[[], None]) -> None:
    """Have ``lost`` called when a process that the runner needs is gone, for a runner that can tell."""
    if hasattr(runner, "when_lost"):
        runner.when_lost = lost


def buckets_of(runner: Runner) -> tuple[int, ...]:
    """The numbers of tokens that the runner was compiled for, ascending, up to the most that it takes."""
    named: Sequence[int] = getattr(runner, "buckets", USUAL_BUCKETS)
    return tuple(sorted({each for each in named if 0 < each < runner.max_tokens} | {runner.max_tokens}))


def shares_of(runner: Runner) -> int:
    return int(getattr(runner, "shares", 1))


def threads_of(runner: Runner) -> int:
    return int(getattr(runner, "threads", 1))


def workers_of(runner: Runner) -> int:
    return int(getattr(runner, "workers", 1))


def end_tokens_of(runner: Runner) -> tuple[int, ...]:
    return tuple(getattr(runner, "end_tokens", ()))
