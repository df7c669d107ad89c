"""What the scheduler reads and decides: sequences, times of iterations, limits, and the plan of an iteration."""

from __future__ import annotations

from bisect import bisect_left
from collections import abc
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from collage.serve.blocks import BlockPool, block_key
from collage.serve.runner import Runner, buckets_of

PRIORITY_S = 10.0
"""What one step of priority is worth: a request of priority 1 waits as if it had come this much later."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of a prompt and of its answer so far, with the state that changes at each iteration.

    ``max_length`` is the most tokens that it can have. ``computed`` tokens have keys and values in the cache, in
    ``blocks``; ``cached`` of them were found there, and ``registered`` blocks can be found by others. ``leader`` is a
    sequence with the same prompt whose blocks this one waits for, and ``root`` the key that the keys of its blocks
    begin with. ``started`` says that it was admitted once, ``in_flight`` that an iteration with it has not returned,
    and ``done`` that it has left the engine. Times are in seconds of the engine's clock.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    max_length: int
    arrival: int
    arrival_s: float = 0.0
    priority: int = 0
    deadline_s: float = float("inf")
    leader: Sequence | None = None
    root: bytes = b""
    computed: int = 0
    cached: int = 0
    blocks: tuple[int, ...] = ()
    keys: list[bytes] = field(default_factory=list)
    registered: int = 0
    started: bool = False
    in_flight: bool = False
    cancelled: bool = False
    done: bool = False
    order: tuple[float, int] = field(init=False)
    """What waiting sequences are sorted by: arrival, shifted by priority. It never changes, so nobody starves."""

    def __post_init__(self) -> None:
        self.order = (self.arrival_s + PRIORITY_S * self.priority, self.arrival)

    @property
    def remaining(self) -> int:
        """The tokens whose keys and values are not computed yet; a running stream has one."""
        return len(self.tokens) - self.computed

    @property
    def waits_for_leader(self) -> bool:
        """Whether the prompt that this sequence shares is still being computed."""
        leader = self.leader
        return leader is not None and not leader.done and leader.computed < leader.prompt_length

    def extend_keys(self, block_tokens: int, full: int) -> None:
        """Compute the keys of the first ``full`` blocks, of which those known already are kept."""
        while len(self.keys) < full:
            at = len(self.keys) * block_tokens
            parent = self.keys[-1] if self.keys else self.root
            self.keys.append(block_key(parent, self.tokens[at : at + block_tokens]))


USUAL_STREAMS, MOST_STREAMS = 32, 64
"""The most streams of an iteration where more of them would hardly be faster, and where they would be."""
_HARDLY = 1.1


@dataclass(frozen=True)
class BucketCosts:
    """The time of an iteration for each bucket: ``ms[i]`` for one of up to ``buckets[i]`` tokens, ascending.

    Each of the tokens is a stream's with a row of logits, as in an iteration that decodes. ``body_ms`` are the times
    of a chunk of one prompt without logits; it is empty if they are not known.
    """

    buckets: tuple[int, ...]
    ms: tuple[float, ...]
    body_ms: tuple[float, ...] = ()

    def bucket(self, tokens: int) -> int:
        """The index of the smallest bucket that holds this many tokens, or of the largest one."""
        return min(bisect_left(self.buckets, tokens), len(self.buckets) - 1)

    def with_streams(self, streams: int) -> BucketCosts:
        """The costs of iterations with so many streams, which have a row of logits each; other tokens are prompts'."""
        return self._with_streams[self.bucket(streams)] if self.body_ms else self

    @cached_property
    def _with_streams(self) -> tuple[BucketCosts, ...]:
        """The costs beside streams that fill each of the buckets. An iteration with prompts would take 4 us for one."""
        more = (max(ms - body_ms, 0.0) for ms, body_ms in zip(self.ms, self.body_ms, strict=True))
        return tuple(BucketCosts(self.buckets, tuple(body_ms + ms for body_ms in self.body_ms)) for ms in more)

    def of(self, tokens: int) -> float:
        """The milliseconds of an iteration with this many tokens. More than the largest bucket take several."""
        whole, rest = divmod(tokens, self.buckets[-1])
        return whole * self.ms[-1] + (self.ms[self.bucket(rest)] if rest else 0.0)


def rewarding_streams(costs: BucketCosts) -> int:
    """How many streams an iteration should have: from 32 to 64, as many as shorten the time of each one's token.

    That is the least number at which a token takes at most a tenth longer than at the best one. If arithmetic sets
    the pace, 64 streams take twice as long as 32. If reading the weights does, they take little longer.
    """
    more = (each for each in costs.buckets if USUAL_STREAMS < each <= MOST_STREAMS)
    share_ms = {streams: costs.of(streams) / streams for streams in (USUAL_STREAMS, *more)}
    least_ms = min(share_ms.values())
    return next(streams for streams, ms in share_ms.items() if ms <= _HARDLY * least_ms)


def costs_of(runner: Runner) -> BucketCosts:
    """The table of a runner. Noise in it is smoothed: a larger bucket never costs less than a smaller one."""
    buckets = buckets_of(runner)
    ms = _ascending(map(runner.cost_ms, buckets))
    body = getattr(runner, "body_ms", None)
    return BucketCosts(buckets, ms, () if body is None else _ascending(map(body, buckets)))


def _ascending(times: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate((max(each, 1e-6) for each in times), max))


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
        return sum(self.counts)


Policy = abc.Callable[[RequestPool, float, BucketCosts, Limits], IterationPlan]
"""A policy is a pure function of the pool, the clock in seconds, the costs and the limits."""


def expired(pool: RequestPool, now_s: float) -> tuple[Sequence, ...]:
    """The sequences whose deadline has passed and that are not in flight."""
    if now_s < pool.next_deadline_s:
        return ()
    late = [each for each in (*pool.running, *pool.waiting) if each.deadline_s <= now_s]
    return tuple(each for each in late if not each.in_flight)
