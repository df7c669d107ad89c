"""A schedule in the making: when each thread is free and when each launch ends, by measured cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from collage.schedule.dag import Dag
from collage.schedule.schedule import TEAM, Schedule


@dataclass(frozen=True)
class Costs:
    """Microseconds of each launch on the whole team, and on one thread (None where it cannot).

    ``meeting_us`` is what it takes all threads to meet after launches side by side, ``event_us`` what one waits for
    another's event.
    """

    team_us: tuple[float, ...]
    alone_us: tuple[float | None, ...]
    meeting_us: float = 0.0
    event_us: float = 0.0


@dataclass(frozen=True)
class Found:
    """A schedule and its time by the costs, in microseconds."""

    schedule: Schedule
    time_us: float


Algorithm: TypeAlias = Callable[[Dag, Costs, int, frozenset[int]], Found]
"""Streams and order for a number of threads, given which launches run on one thread each."""


class Timeline:
    """Launches are added one after another, in the order of the schedule; ``threads`` is the team's size."""

    def __init__(self, dag: Dag, costs: Costs, threads: int, alone: frozenset[int]) -> None:
        self._dag, self._costs, self._alone = dag, costs, alone
        self.time_us = [self._time_of(v) for v in range(len(dag))]
        self.free = [0.0] * threads
        self.apart = False
        """Whether something has run on a single thread since all threads met."""
        self._ready_us = [0.0] * len(dag)
        self._waiting = [len(before) for before in dag.predecessors]
        self._streams = [TEAM] * len(dag)
        self._order: list[int] = []

    def ready(self) -> list[int]:
        """What can be added first."""
        return [v for v, count in enumerate(self._waiting) if not count]

    def start(self, v: int) -> float:
        """When a ready launch could begin on the thread that is free first."""
        return max(min(self.free), self._ready_us[v])

    def thread(self, v: int) -> int:
        """The thread on which a ready launch begins first; of equals one that ran what it reads, then the lowest."""
        before = self._before(v)
        return min(range(len(self.free)), key=lambda t: (self._begin(v, t, before), t not in before, t))

    def add_alone(self, v: int, thread: int) -> list[int]:
        """Run a launch on one thread; what is ready for it now."""
        self._streams[v] = thread
        end = self.free[thread] = self._begin(v, thread, self._before(v)) + self.time_us[v]
        self.apart = True
        return self._added(v, end)

    def add_on_team(self, v: int) -> list[int]:
        """Run a launch on all threads; what is ready for it now."""
        self._meet()
        end = self.free[0] + self.time_us[v]
        self.free = [end] * len(self.free)
        return self._added(v, end)

    def finish(self) -> Found:
        """The schedule of all that was added."""
        self._meet()
        return Found(Schedule(tuple(self._order), tuple(self._streams)), self.free[0])

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
        if self.apart:
            self.free = [max(self.free) + self._costs.meeting_us] * len(self.free)
            self.apart = False

    def _time_of(self, v: int) -> float:
        alone = self._costs.alone_us[v]
        if v not in self._alone:
            return self._costs.team_us[v]
        assert alone is not None
        return alone
