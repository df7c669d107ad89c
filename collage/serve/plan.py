"""What the scheduler reads and what it decides: the pool of requests, the limits, and the plan of one iteration."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import NamedTuple

from collage.serve.blocks import BlockPool
from collage.serve.costs import BucketCosts
from collage.serve.sequence import Sequence


@dataclass(frozen=True)
class Limits:
    """What bounds an iteration.

    ``max_running`` is the most sequences of an iteration, of which ``workers`` may be in flight; ``itl_target_ms`` is
    the time between tokens that running streams keep, as in ``EngineOptions``.
    """

    max_running: int
    block_tokens: int
    itl_target_ms: float | None = None
    workers: int = 1

    def blocks_for(self, tokens: int) -> int:
        """The number of blocks that hold this many tokens."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True)
class RequestPool:
    """The requests of the engine. A policy reads it and changes nothing in it.

    ``running`` are the admitted sequences and ``waiting`` the others, each in order; ``next_deadline_s`` is the
    earliest deadline of all.
    """

    running: abc.Sequence[Sequence]
    waiting: abc.Sequence[Sequence]
    blocks: BlockPool
    next_deadline_s: float = float("inf")


class Part(NamedTuple):
    """A sequence's share of an iteration: its next ``tokens`` tokens."""

    sequence: Sequence
    tokens: int


@dataclass(frozen=True)
class Admission:
    """A waiting sequence that begins to run, with the blocks of the cache that hold the beginning of its prompt."""

    sequence: Sequence
    cached: tuple[int, ...] = ()


@dataclass(frozen=True)
class IterationPlan:
    """What one iteration does, in this order: expired, preempted, admitted, sequences. It may be empty.

    ``counts`` has the number of the next tokens of each of the ``sequences``. A stream has one.
    """

    sequences: tuple[Sequence, ...] = ()
    counts: tuple[int, ...] = ()
    admitted: tuple[Admission, ...] = ()
    preempted: tuple[Sequence, ...] = ()
    expired: tuple[Sequence, ...] = ()

    @property
    def tokens(self) -> int:
        """The tokens of the iteration."""
        return sum(self.counts)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The sequences with their counts."""
        return tuple(map(Part, self.sequences, self.counts))


Policy = abc.Callable[[RequestPool, float, BucketCosts, Limits], IterationPlan]
"""A policy is a pure function of the pool, the clock in seconds, the costs and the limits."""


def expired(pool: RequestPool, now_s: float) -> tuple[Sequence, ...]:
    """The sequences whose deadline has passed and that are not in flight."""
    if now_s < pool.next_deadline_s:
        return ()
    late = [each for each in (*pool.running, *pool.waiting) if each.deadline_s <= now_s]
    return tuple(each for each in late if not each.in_flight)
