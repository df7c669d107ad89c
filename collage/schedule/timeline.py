"""A schedule that is being made: when each thread is free, and when each launch ends, by measured cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from collage.schedule.dag import Dag
from collage.schedule.schedule import TEAM, Schedule


@dataclass(frozen=True)
class Costs:
    """Microseconds of each launch on the whole team, and on one thread (None where it cannot run on one).

    ``meeting_us`` is the time of a barrier after concurrent launches, and ``event_us`` the time from one thread's event
    to the launch on another thread that waits for it.
    """

    team_us: tuple[float, ...]
    single_threaded_us: tuple[float | None, ...]
    meeting_us: float = 0.0
    event_us: float = 0.0


@dataclass(frozen=True)
class TimedSchedule:
    """A schedule and its time by the costs, in microseconds."""

    schedule: Schedule
    time_us: float


Algorithm: TypeAlias = Callable[[Dag, Costs, int, frozenset[int]], TimedSchedule]
"""Streams and order for a number of threads, given which launches run on one thread each."""


class Timeline:
    """The times of a schedule, to which launches are added one after another; ``threads`` is the team's size.

    ``single_threaded`` are the launches that run on one thread each.
    """

    def __init__(self, dag: Dag, costs: Costs, threads: int, single_threaded: frozenset[int]) -> None:
        self._dag, self._costs, self._single_threaded = dag, costs, single_threaded
        self.time_us = [self._time_of(v) for v in range(len(dag))]
        self.free = [0.0] * threads
        self.concurrent = False
        """Whether some launch has run on a single thread since the last barrier."""
        self._ready_us = [0.0] * len(dag)
        self._waiting = [len(before) for before in dag.predecessors]
        self._streams = [TEAM] * len(dag)
        self._order: list[int] = []

    def ready(self) -> list[int]:
        """The launches that depend on no other one."""
        return [v for v, count in enumerate(self._waiting) if not count]

    def start(self, v: int) -> float:
        """When a ready launch could begin on the thread that is free first."""
        return max(min(self.free), self._ready_us[v])

    def thread(self, v: int) -> int:
        """The thread on which a ready launch begins first.

        Of equal ones it is one that ran a launch whose result is read, and then the lowest.
        """
        before = self._before(v)
        return min(range(len(self.free)), key=lambda t: (self._begin(v, t, before), t not in before, t))

    def add_single_threaded(self, v: int, thread: int) -> list[int]:
        """Add a launch on one thread, and return the launches that are ready because of it."""
        self._streams[v] = thread
        end = self.free[thread] = self._begin(v, thread, self._before(v)) + self.time_us[v]
        self.concurrent = True
        return self._added(v, end)

    def add_on_team(self, v: int) -> list[int]:
        """Add a launch on all threads, and return the launches that are ready because of it."""
        self._meet()
        end = self.free[0] + self.time_us[v]
        self.free = [end] * len(self.free)
        return self._added(v, end)

    def finish(self) -> TimedSchedule:
        """The schedule of all launches that were added."""
        self._meet()
        return TimedSchedule(Schedule(tuple(self._order), tuple(self._streams)), self.free[0])

    def _added(self, v: int, end: float) -> list[int]:
        self._order.append(v)
        ready = []
        for w in self._dag.successors[v]:
            self._ready_us[w] = max(self._ready_us[w], end)
            self._waiting[w] -= 1
            if not self._waiting[w]:
                ready.append(w)
        return ready

    def _before(self, v: int) -> set[int]:
        return {self._streams[u] for u in self._dag.predecessors[v]} - {TEAM}

    def _begin(self, v: int, thread: int, before: set[int]) -> float:
        waits = self._costs.event_us if before - {thread} else 0.0
        return max(self.free[thread], self._ready_us[v] + waits)

    def _meet(self) -> None:
        if self.concurrent:
            self.free = [max(self.free) + self._costs.meeting_us] * len(self.free)
            self.concurrent = False

    def _time_of(self, v: int) -> float:
        if v not in self._single_threaded:
            return self._costs.team_us[v]
        us = self._costs.single_threaded_us[v]
        assert us is not None
        return us
