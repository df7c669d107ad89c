"""Mapping Nimble's and Opara's streams to the threads of a team.

Both papers assign as many streams as the graph is wide, and a GPU runs them all. A team has one thread for each core,
so there are more streams than threads. A stream begins on the thread that is free first, and stays there until another
stream has taken that thread, or until a barrier; then it is mapped again. The order of launches is the algorithm's
own.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from collage.schedule.dag import Dag
from collage.schedule.nimble import nimble_streams
from collage.schedule.opara import opara_order, opara_streams
from collage.schedule.timeline import Costs, TimedSchedule, Timeline

_MUCH = 0.5
"""A launch that moves its bytes at this share of the highest rate, or at more, is bound by memory."""


@dataclass(frozen=True)
class MappedStreams:
    """An algorithm's ``streams`` and its order: of the ready launches, the one with the least ``rank`` goes first.

    Launches of the whole team wait until no other launch is ready. Takes O(V log V + E) steps for V launches and E
    edges.
    """

    streams: Sequence[int]
    rank: Sequence[float]

    def __call__(self, dag: Dag, costs: Costs, threads: int, single_threaded: frozenset[int]) -> TimedSchedule:
        """Schedule launches, those in ``single_threaded`` by their streams; see ``timeline.Algorithm``."""
        line = Timeline(dag, costs, threads, single_threaded)
        ready = [(v not in single_threaded, self.rank[v], v) for v in line.ready()]
        heapq.heapify(ready)
        last: list[int | None] = [None] * threads  # the stream that each thread ran last, since the last barrier
        while ready:
            on_team, _, v = heapq.heappop(ready)
            stream = self.streams[v]
            if on_team:
                last = [None] * threads
                released = line.add_on_team(v)
            else:
                thread = last.index(stream) if stream in last else line.thread(v)
                last[thread] = stream
                released = line.add_single_threaded(v, thread)
            for w in released:
                heapq.heappush(ready, (w not in single_threaded, self.rank[w], w))
        return line.finish()


def nimble(dag: Dag, costs: Costs) -> MappedStreams:
    """Nimble's Algorithm 1; the stream with the most microseconds left goes first."""
    streams = nimble_streams(dag)
    time_us = _one_thread_us(costs)
    left = [0.0] * len(dag)
    behind: dict[int, float] = {}
    for v in reversed(range(len(dag))):
        left[v] = behind[streams[v]] = time_us[v] + behind.get(streams[v], 0.0)
    return MappedStreams(streams, [-us for us in left])


def opara(dag: Dag, costs: Costs, moved_bytes: Sequence[float]) -> MappedStreams:
    """Opara's Algorithms 1 and 2, by measured profile; ``moved_bytes`` are the bytes that each launch reads and writes.

    On a CPU a kernel occupies cache, so its demand is the bytes that it moves. It is bound by memory where it moves
    them at no less than half the highest rate of all launches.
    """
    rates = [n / us if us > 0 else 0.0 for n, us in zip(moved_bytes, _one_thread_us(costs), strict=True)]
    much = _MUCH * max(rates, default=0.0)
    order = opara_order(dag, [rate >= much for rate in rates], moved_bytes)
    rank = [0.0] * len(dag)
    for position, v in enumerate(order):
        rank[v] = position
    return MappedStreams(opara_streams(dag), rank)


def _one_thread_us(costs: Costs) -> list[float]:
    return [
        team if single is None else single for team, single in zip(costs.team_us, costs.single_threaded_us, strict=True)
    ]
