"""List scheduling: streams and order for launches of which each takes one thread, or all of them."""

from __future__ import annotations

from collections.abc import Sequence

from collage.schedule.dag import Dag
from collage.schedule.timeline import Costs, TimedSchedule, Timeline


def list_schedule(dag: Dag, costs: Costs, threads: int, single_threaded: frozenset[int]) -> TimedSchedule:
    """Schedule launches on ``threads`` threads, the one with the longest way to the end first.

    Launches in ``single_threaded`` take one thread each, all others the whole team. A launch on the team waits as long
    as another one can begin on a thread that would be idle until then. Takes O(V R) steps for V launches of which at
    most R are ready at the same time.
    """
    line = Timeline(dag, costs, threads, single_threaded)
    urgency = [0.0] * len(dag)
    for v in reversed(range(len(dag))):
        urgency[v] = line.time_us[v] + max((urgency[w] for w in dag.successors[v]), default=0.0)
    ready = line.ready()
    while ready:
        v = _next(line, ready, single_threaded, urgency)
        ready.remove(v)
        ready += line.add_single_threaded(v, line.thread(v)) if v in single_threaded else line.add_on_team(v)
    return line.finish()


def _next(line: Timeline, ready: Sequence[int], single_threaded: frozenset[int], urgency: Sequence[float]) -> int:
    singles = [v for v in ready if v in single_threaded]
    if len(singles) < len(ready):
        whole = max((v for v in ready if v not in single_threaded), key=lambda v: (urgency[v], -v))
        if line.concurrent:  # those that can begin before the last thread is free
            singles = [v for v in singles if line.start(v) < max(line.free)]
        elif all(urgency[whole] >= urgency[v] for v in singles):  # what follows it runs beside them then
            singles = []
        if not singles:
            return whole
    return min(singles, key=lambda v: (line.start(v), -urgency[v], v))
