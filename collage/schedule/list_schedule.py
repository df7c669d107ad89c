"""List scheduling: streams and order for launches of which each takes one thread, or all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def list_schedule(dag: Dag, costs: Costs, threads: int, alone: frozenset[int]) -> Found:
    """Those in ``alone`` on one thread each, all others on the whole team; the longest way to the end goes first.

    A launch on the team waits as long as something else can begin on a thread that would idle until then.
    O(V ready).
    """
    return _Lists(dag, costs, threads, alone).run()


class _Lists:
    """The state: when each thread is free, and when each launch ended."""

    def __init__(self, dag: Dag, costs: Costs, threads: int, alone: frozenset[int]) -> None:
        self._dag, self._costs, self._alone = dag, costs, alone
        count = len(dag)
        self._time = [self._time_of(v) for v in range(count)]
        self._urgency = [0.0] * count
        for v in reversed(range(count)):
            self._urgency[v] = self._time[v] + max((self._urgency[w] for w in dag.successors[v]), default=0.0)
        self._ends = [0.0] * count
        self._ready_us = [0.0] * count
        self._streams = [TEAM] * count
        self._free = [0.0] * threads
        self._apart = False

    def run(self) -> Found:
        """Schedule everything."""
        dag = self._dag
        waiting = [len(before) for before in dag.predecessors]
        ready = [v for v, count in enumerate(waiting) if not count]
        order: list[int] = []
        while ready:
            v = self._next(ready)
            ready.remove(v)
            order.append(v)
            if v in self._alone:
                self._run_alone(v)
            else:
                self._meet()
                self._ends[v] = self._free[0] + self._time[v]
                self._free = [self._ends[v]] * len(self._free)
            for w in dag.successors[v]:
                self._ready_us[w] = max(self._ready_us[w], self._ends[v])
                waiting[w] -= 1
                if not waiting[w]:
                    ready.append(w)
        self._meet()
        return Found(Schedule(tuple(order), tuple(self._streams)), self._free[0])

    def _next(self, ready: Sequence[int]) -> int:
        urgency = self._urgency
        singles = [v for v in ready if v in self._alone]
        if len(singles) < len(ready):
            whole = max((v for v in ready if v not in self._alone), key=lambda v: (urgency[v], -v))
            if self._apart:  # what fits before the last thread is done
                singles = [v for v in singles if self._start(v) < max(self._free)]
            elif singles and urgency[whole] > max(urgency[v] for v in singles):
                singles = []
            if not singles:
                return whole
        return min(singles, key=lambda v: (self._start(v), -urgency[v], v))

    def _start(self, v: int) -> float:
        return max(min(self._free), self._ready_us[v])

    def _run_alone(self, v: int) -> None:
        before = {self._streams[u] for u in self._dag.predecessors[v]} - {TEAM}

        def begins(stream: int) -> tuple[float, bool, int]:
            waits = self._costs.event_us if before - {stream} else 0.0
            return max(self._free[stream], self._ready_us[v] + waits), stream not in before, stream

        stream = min(range(len(self._free)), key=begins)
        self._streams[v] = stream
        self._free[stream] = self._ends[v] = begins(stream)[0] + self._time[v]
        self._apart = True

    def _meet(self) -> None:
        if self._apart:
            self._free = [max(self._free) + self._costs.meeting_us] * len(self._free)
            self._apart = False

    def _time_of(self, v: int) -> float:
        alone = self._costs.alone_us[v]
        if v not in self._alone:
            return self._costs.team_us[v]
        assert alone is not None
        return alone
