"""Opara's stream allocation (Algorithm 1, greedy and linear) and launch order (Algorithm 2)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from collage.schedule.dag import Dag


def opara_streams(dag: Dag) -> tuple[int, ...]:
    """The stream of each node: that of its first predecessor without a successor on it yet, or a new one. O(V + E)."""
    followed = [False] * len(dag)
    streams: list[int] = []
    count = 0
    for before in dag.predecessors:
        for u in before:
            if not followed[u]:
                followed[u] = True
                streams.append(streams[u])
                break
        else:
            streams.append(count)
            count += 1
    return tuple(streams)


def opara_order(dag: Dag, memory_bound: Sequence[bool], demand: Sequence[float]) -> tuple[int, ...]:
    """A topological order that alternates between memory-bound and compute-bound nodes where both are ready.

    Of each kind the one with the smallest demand goes first. ``memory_bound`` and ``demand`` are measured for each
    node; a demand may be any number that grows with what the kernel occupies. Takes O(V log V + E) steps.
    """
    waiting = [len(before) for before in dag.predecessors]
    ready: tuple[list[tuple[float, int]], list[tuple[float, int]]] = ([], [])
    order: list[int] = []
    kind = True

    def release(v: int) -> None:
        heapq.heappush(ready[memory_bound[v]], (demand[v], v))

    for v, count in enumerate(waiting):
        if not count:
            release(v)
    while ready[0] or ready[1]:
        kind = not kind if ready[not kind] else kind
        _, v = heapq.heappop(ready[kind])
        order.append(v)
        for after in dag.successors[v]:
            waiting[after] -= 1
            if not waiting[after]:
                release(after)
    return tuple(order)
