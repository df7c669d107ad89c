"""Nimble's and Opara's streams on a team of a few threads.

Both papers assign as many streams as the graph is wide, and a GPU runs them all. A team has a thread for each core, so
their streams are folded: a stream begins on the thread that has time for it first, and goes on there until another
stream has taken that thread, or all threads meet; then it looks for one again. What is launched next is the
algorithm's own order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from collage.schedule.dag import Dag
from collage.schedule.nimble import nimble_streams
from collage.schedule.opara import opara_order, opara_streams
from collage.schedule.timeline import Costs, Found, Timeline

_MUCH = 0.5
"""Of the highest rate: a launch that moves its bytes at this rate or more is bound by memory."""


@dataclass(frozen=True)
class Folded:
    """An algorithm's ``streams``, and its order: of the launches that are ready the one of the least ``rank``.

    Launches of the whole team wait until nothing else is ready. O(V log V + E).
    """

    streams: Sequence[int]
    rank: Sequence[float]

    def __call__(self, dag: Dag, costs: Costs, threads: int, alone: frozenset[int]) -> Found:
        """The streams of those in ``alone`` on ``threads`` threads; see ``timeline.Algorithm``."""
        line = Timeline(dag, costs, threads, alone)
        ready = [(v not in alone, self.rank[v], v) for v in line.ready()]
        heapq.heapify(ready)
        last: list[int | None] = [None] * threads  # the stream that a thread ran last, since all met
        while ready:
            on_team, _, v = heapq.heappop(ready)
            stream = self.streams[v]
            if on_team:
                last = [None] * threads
                released = line.add_on_team(v)
            else:
                thread = last.index(stream) if stream in last else line.thread(v)
                last[thread] = stream
                released = line.add_alone(v, thread)
            for w in released:
                heapq.heappush(ready, (w not in alone, self.rank[w], w))
        return line.finish()


def nimble(dag: Dag, costs: Costs) -> Folded:
    """Nimble's Algorithm 1; of its streams the one with most left to do goes first."""
    streams = nimble_streams(dag)
    time_us = _one_thread_us(costs)
    left = [0.0] * len(dag)
    behind: dict[int, float] = {}
    for v in reversed(range(len(dag))):
        left[v] = behind[streams[v]] = time_us[v] + behind.get(streams[v], 0.0)
    return Folded(streams, [-us for us in left])


def opara(dag: Dag, costs: Costs, moved_bytes: Sequence[float]) -> Folded:
    """Opara's Algorithms 1 and 2, by measured profile: ``moved_bytes`` is what each launch reads and writes.

    What a kernel occupies on a CPU is cache, so its demand is what it moves; it is bound by memory where it moves
    that at no less than half the rate of the launch that moves most in its time.
    """
    rates = [n / us if us > 0 else 0.0 for n, us in zip(moved_bytes, _one_thread_us(costs), strict=True)]
    much = _MUCH * max(rates, default=0.0)
    order = opara_order(dag, [rate >= much for rate in rates], moved_bytes)
    rank = [0.0] * len(dag)
    for position, v in enumerate(order):
        rank[v] = position
    return Folded(opara_streams(dag), rank)


def _one_thread_us(costs: Costs) -> list[float]:
    return [
        team if alone is None else alone for team, alone in zip(costs.team_us, costs.alone_us, strict=True)
    ]
