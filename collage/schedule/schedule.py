"""A schedule: the stream of each launch, the order, and which launch waits for which. It knows no device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from collage.schedule.dag import Dag

TEAM = -1
"""The stream of a launch that takes all threads: everything before it ends first, and nothing after it begins."""


@dataclass(frozen=True)
class Schedule:
    """A topological ``order`` of the launches, and their streams: ``streams[v]`` is that of launch v, or TEAM.

    The launches of a stream run in this order.
    """

    order: tuple[int, ...]
    streams: tuple[int, ...]

    @staticmethod
    def sequential(count: int) -> Schedule:
        """A schedule that runs all launches on the whole team, one after another."""
        return Schedule(tuple(range(count)), (TEAM,) * count)

    @property
    def count(self) -> int:
        """The number of concurrent streams; 0 where every launch takes the whole team."""
        return max(self.streams, default=TEAM) + 1


@dataclass(frozen=True)
class Ordered:
    """A schedule of a graph, with the events that it needs, and the launches that have ended when each one begins."""

    dag: Dag
    schedule: Schedule

    @cached_property
    def events(self) -> tuple[tuple[int, int], ...]:
        """The pairs (u, v) where launch v waits for launch u, in the order of the launches that wait.

        They are the edges that no stream's order, launch of the whole team or other event implies.
        """
        return self._walk[0]

    @cached_property
    def before(self) -> tuple[int, ...]:
        """For each launch, the set of launches that have ended when it begins: bit u stands for launch u."""
        return self._walk[1]

    @cached_property
    def _walk(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        events: list[tuple[int, int]] = []
        before = [0] * len(self.dag)
        place = [0] * len(self.dag)
        ended: dict[int, int] = {}  # by stream: its last launch and all that ended before that
        all_ended = everything = 0
        for position, v in enumerate(self.schedule.order):
            place[v] = position
            stream = self.schedule.streams[v]
            if stream == TEAM:
                before[v] = everything
                ended.clear()
                everything |= 1 << v
                all_ended = everything
                continue
            known = ended.get(stream, all_ended)
            for u in sorted(self.dag.predecessors[v], key=place.__getitem__, reverse=True):
                if not known >> u & 1:
                    events.append((u, v))
                    known |= before[u] | 1 << u
            before[v] = known
            ended[stream] = known | 1 << v
            everything |= 1 << v
        return tuple(events), tuple(before)


def check(dag: Dag, schedule: Schedule) -> None:
    """Raise ValueError unless the order has all launches and respects the graph, and the streams are some."""
    if sorted(schedule.order) != list(range(len(dag))) or len(schedule.streams) != len(dag):
        raise ValueError(f"a schedule of {len(schedule.order)} launches for a graph of {len(dag)}")
    if min(schedule.streams, default=TEAM) < TEAM:
        raise ValueError(f"there is no stream {min(schedule.streams)}")
    place = {v: position for position, v in enumerate(schedule.order)}
    for u, v in dag.edges:
        if place[u] > place[v]:
            raise ValueError(f"launch {v} needs launch {u} and comes before it")


def concurrency(dag: Dag, schedule: Schedule, cost_us: Sequence[float]) -> float:
    """The degree of concurrency: the sum of the launches' times, divided by the time of the schedule."""
    total = sum(cost_us)
    return total / makespan_us(dag, schedule, cost_us) if total else 1.0


def critical_path_us(dag: Dag, cost_us: Sequence[float]) -> float:
    """The time of the longest path through the graph, in microseconds."""
    ends: list[float] = []
    for v, before in enumerate(dag.predecessors):
        ends.append(cost_us[v] + max((ends[u] for u in before), default=0.0))
    return max(ends, default=0.0)


def makespan_us(dag: Dag, schedule: Schedule, cost_us: Sequence[float]) -> float:
    """The end of the last launch in microseconds, if each takes its time and waiting costs nothing."""
    ends = [0.0] * len(dag)
    free: dict[int, float] = {}
    all_free = latest = 0.0
    for v in schedule.order:
        stream = schedule.streams[v]
        if stream == TEAM:
            latest = all_free = ends[v] = latest + cost_us[v]
            free.clear()
            continue
        start = max([free.get(stream, all_free), *(ends[u] for u in dag.predecessors[v])])
        free[stream] = ends[v] = start + cost_us[v]
        latest = max(latest, ends[v])
    return latest


def begins(ordered: Ordered, ends: Sequence[int], begin: int) -> list[int]:
    """When each launch could begin, given when each ended, in any unit."""
    waits: dict[int, list[int]] = {}
    for u, v in ordered.events:
        waits.setdefault(v, []).append(u)
    found = [begin] * len(ends)
    last: dict[int, int] = {}
    met = latest = begin
    for v in ordered.schedule.order:
        stream = ordered.schedule.streams[v]
        if stream == TEAM:
            found[v] = latest
            last.clear()
            met = latest = ends[v]
        else:
            found[v] = max([last.get(stream, met), *(ends[u] for u in waits.get(v, ()))])
            last[stream] = ends[v]
            latest = max(latest, ends[v])
    return found


def running(ordered: Ordered, clock: Sequence[int]) -> int | None:
    """The launch that was running, or None where more than one may have been.

    A launch may have been running when it has not ended, and all that it waits for has.
    """
    ended = sum(1 << v for v, end in enumerate(clock) if end)
    possible = [v for v, before in enumerate(ordered.before) if not clock[v] and before & ended == before]
    return possible[0] if len(possible) == 1 else None
