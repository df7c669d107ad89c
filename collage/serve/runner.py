"""What the scheduler and the engine ask of a decoder: iterations over packed tokens of many requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Slice:
    """Part of one request in one iteration.

    ``token_ids`` are the new tokens, and ``start`` is the position of the first of them in the sequence. ``blocks`` are
    the block ids of the whole sequence so far, in order; they cover ``start + len(token_ids)`` tokens.
    ``wants_logits`` is False for a chunk of a prefill that is not the last one.
    """

    token_ids: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    wants_logits: bool


class Runner(Protocol):
    """A decoder with a paged cache.

    ``block_tokens`` are the tokens of a block of the K/V cache, and ``block_count`` its blocks. ``max_tokens`` is the
    most tokens of one iteration, ``max_length`` that of one sequence, and ``vocabulary`` the number of token ids.
    """

    block_tokens: int
    block_count: int
    max_tokens: int
    max_length: int
    vocabulary: int

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        """One row of logits [wanted, vocabulary] for each slice that wants them, in order."""

    def cost_ms(self, tokens: int) -> float:
        """The measured time of an iteration with that many tokens, in milliseconds."""

    def close(self) -> None:
        """Free what the runner holds. It must not be used afterwards."""
