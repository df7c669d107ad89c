"""The default scheduler: running streams first, and prompts in chunks that fill the iteration up to a bucket."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass

from collage.serve.plan import Admission, BucketCosts, IterationPlan, Limits, RequestPool, Sequence, expired

_USUAL_SLOWDOWN = 2.0
"""Without a target, an iteration with a chunk may take this many times what the streams take alone, unless many wait.

So the longest time between tokens is less than 2.5 times the usual one, also when the usual one has no prompt, and
where sequences are longer than those that the table was measured with.
"""

_MANY = 0.25
"""Without a target, many requests wait when they could take this share of the places in an iteration, or when there are
more than places.

Chunks are as large as they can be then: a token of a small one takes longer, which all who wait pay for. With a
smaller share it would happen at usual loads, too, and every large chunk is a long time between tokens.
"""


@dataclass(frozen=True)
class _Work:
    sequence: Sequence
    tokens: int
    admission: Admission | None = None


def plan_chunked(pool: RequestPool, now_s: float, costs: BucketCosts, limits: Limits) -> IterationPlan:
    """The next iteration: a token of each running stream, and as much of prompts as the streams can bear.

    Sequences are served in their order (arrival, shifted by priority), and none is admitted before one that waits for
    blocks. Only those that wait for the blocks of a leader with the same prompt are passed by.
    """
    late = expired(pool, now_s)
    running, waiting = pool.running, pool.waiting
    if late:
        ended = {each.id for each in late}
        running = [each for each in running if each.id not in ended]
        waiting = [each for each in waiting if each.id not in ended]
    idle = [each for each in running if not each.in_flight]
    preempted: list[Sequence] = []
    released = sum(pool.blocks.sole(each.blocks) for each in late)
    free = pool.blocks.free + released
    idle, preempted, free = _make_room(idle, free, pool, limits)
    streams = [each for each in idle if len(each.tokens) - each.computed == 1]  # ``remaining`` without a call
    work: list[_Work] = []
    if len(streams) < len(idle):
        work += [_Work(each, each.remaining) for each in idle if each.remaining > 1]
    streams = streams[: limits.max_running]
    places = limits.max_running * limits.workers - len(running)
    prompts = work or (waiting and places > 0)
    if not prompts or len(streams) == limits.max_running:
        return IterationPlan(tuple(streams), (1,) * len(streams), preempted=tuple(preempted), expired=late)
    starting = len(work) + sum(not each.waits_for_leader for each in waiting[: max(places, 0)])
    many = starting >= _MANY * limits.max_running or len(waiting) > places
    costs = costs.with_streams(len(streams) + 1)  # few prompts end in one iteration
    most = _largest_bucket(len(streams), many, costs, limits)
    room = costs.buckets[most] - len(streams)
    wanted = room - sum(each.tokens for each in work)
    if wanted > 0 and not preempted:  # else a sequence that was just driven out would drive out the next one
        free -= released  # an admitted prompt may find its beginning in these, and no other one can have them then
        work += _admissible(waiting, wanted, places, free, pool, limits)
    work = work[: limits.max_running - len(streams)]
    chunks = _fill(work, _tokens(len(streams), work, most, costs) - len(streams))
    return IterationPlan(
        sequences=(*streams, *(work.sequence for work, _ in chunks)),
        counts=(1,) * len(streams) + tuple(n for _, n in chunks),
        admitted=tuple(work.admission for work, _ in chunks if work.admission is not None),
        preempted=tuple(preempted),
        expired=late,
    )


def _make_room(
    idle: list[Sequence], free: int, pool: RequestPool, limits: Limits
) -> tuple[list[Sequence], list[Sequence], int]:
    """Drive out the last sequences until each stream has the block that its next token needs.

    Returns the sequences that run in this iteration, those driven out, and the blocks that are free then. The first
    one is never driven out; where blocks of iterations in flight are missing, it waits for them.
    """

    size = limits.block_tokens
    kept, preempted = list(idle), []
    wanted = sum([each.computed // size >= len(each.blocks) for each in kept])
    while wanted > free and len(kept) > 1:
        victim = kept.pop()
        preempted.append(victim)
        wanted -= victim.computed // size >= len(victim.blocks)
        free += pool.blocks.sole(victim.blocks)
    if wanted > free:
        return [], preempted, 0
    return kept, preempted, free - wanted


def _largest_bucket(streams: int, many: bool, costs: BucketCosts, limits: Limits) -> int:
    """The index of the largest bucket that keeps the target, at least the smallest with room for a prompt's token.

    ``many`` tells that many requests wait.
    """
    last = len(costs.buckets) - 1
    if not streams:
        return last
    target = limits.itl_target_ms
    if target is None:
        if many:
            return last
        target = _USUAL_SLOWDOWN * costs.of(streams)
    best = costs.bucket(streams + 1)
    while best + 1 < len(costs.buckets) and costs.ms[best + 1] <= target:
        best += 1
    return best


def _admissible(
    waiting: abc.Sequence[Sequence], wanted: int, places: int, free: int, pool: RequestPool, limits: Limits
) -> Iterator[_Work]:
    """The waiting sequences that may begin, until they have the tokens that are wanted."""
    margin = len(pool.running)  # each running stream may need a block soon
    for each in waiting:
        if wanted <= 0 or places <= 0:
            return
        if each.waits_for_leader:
            continue
        cached, kept = _cached(each, pool, limits)
        need = limits.blocks_for(len(each.tokens)) - len(cached) + kept
        if need + margin > free:
            return
        tokens = len(each.tokens) - len(cached) * limits.block_tokens
        yield _Work(each, tokens, Admission(each, cached))
        free -= need
        places -= 1
        wanted -= tokens


def _cached(sequence: Sequence, pool: RequestPool, limits: Limits) -> tuple[tuple[int, ...], int]:
    """The blocks that hold the sequence's beginning, and how many of them are free now."""
    if not pool.blocks.keeps:
        return (), 0
    full = (len(sequence.tokens) - 1) // limits.block_tokens  # one token is computed anyway, for its logits
    sequence.extend_keys(limits.block_tokens, full)
    return pool.blocks.lookup(sequence.keys[:full])


def _tokens(streams: int, work: abc.Sequence[_Work], most: int, costs: BucketCosts) -> int:
    """The tokens of the iteration: those that give the most tokens a millisecond, up to the bucket ``most``.

    It fills a bucket exactly, except where that is all there is to compute, and a few tokens that are left over would
    make the next iteration longer by more than is won.
    """
    wanted = streams + sum(each.tokens for each in work)
    if wanted == streams:
        return streams
    best, best_rate = streams, 0.0
    for i in range(costs.bucket(streams + 1), most + 1):
        tokens = min(costs.buckets[i], wanted)
        rate = tokens / costs.ms[i]
        if rate >= best_rate or (tokens == wanted and costs.ms[i] <= _in_two(streams, best, wanted, costs)):
            best, best_rate = tokens, rate
        if tokens == wanted:
            break
    return best


def _in_two(streams: int, first: int, wanted: int, costs: BucketCosts) -> float:
    """The time of ``first`` tokens now, and by which the rest make the next iteration of the streams longer."""
    return costs.of(first) + costs.of(streams + wanted - first) - costs.of(streams)


def _fill(work: abc.Sequence[_Work], tokens: int) -> list[tuple[_Work, int]]:
    chunks = []
    for each in work:
        if tokens <= 0:
            break
        chunks.append((each, min(each.tokens, tokens)))
        tokens -= each.tokens
    return chunks
