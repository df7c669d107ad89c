"""Orca's scheduler: Algorithm 1 of the paper (OSDI'22), section 4.2."""

from __future__ import annotations

from collections.abc import Iterable

from collage.serve.plan import Admission, BucketCosts, IterationPlan, Limits, RequestPool, Sequence, expired


def select(
    pool: Iterable[tuple[Sequence, bool, int]], n_rsrv: int, max_bs: int, n_slots: int
) -> tuple[list[Sequence], int]:
    """The function Select of Algorithm 1 (lines 17 to 28). Returns the batch, which may be empty, and n_rsrv.

    The pool has for each request whether it is in the initiation phase, and ``max_tokens``: the slots that it reserves
    then. A request that cannot reserve them ends the batch, so that none overtakes it.
    """
    batch: list[Sequence] = []
    idle = [entry for entry in pool if not entry[0].in_flight]
    idle.sort(key=lambda entry: entry[0].arrival)
    for request, initiation, max_tokens in idle:
        if len(batch) == max_bs:
            break
        if initiation:
            new_n_rsrv = n_rsrv + max_tokens
            if new_n_rsrv > n_slots:
                break
            n_rsrv = new_n_rsrv
        batch.append(request)
    return batch, n_rsrv


def plan_orca(pool: RequestPool, now_s: float, costs: BucketCosts, limits: Limits) -> IterationPlan:
    """The next batch by Algorithm 1: first come, first served at the iteration, and prompts are not cut.

    A slot holds the keys and values of one token. The cache hands out whole blocks, so a request's ``max_tokens`` is
    rounded up to blocks. The first hole of the algorithm, a request with more slots than there are, is closed where
    requests are admitted to the engine; the second, an empty batch, is a plan without parts, which is not run.
    """
    late = expired(pool, now_s)
    ended = {each.id for each in late}
    slots = {each.id: limits.block_tokens * limits.blocks_for(each.max_length) for each in pool.running}
    entries = [(each, False, slots[each.id]) for each in pool.running if each.id not in ended]
    entries += [
        (each, True, limits.block_tokens * limits.blocks_for(each.max_length))
        for each in pool.waiting
        if each.id not in ended
    ]
    n_rsrv = sum(slots[each.id] for each in pool.running if each.id not in ended)
    n_slots = pool.blocks.count * limits.block_tokens
    batch, _ = select(entries, n_rsrv, limits.max_running, n_slots)
    return IterationPlan(
        sequences=tuple(batch),
        counts=tuple(each.remaining for each in batch),
        admitted=tuple(Admission(each) for each in batch if each.id not in slots),
        expired=late,
    )
