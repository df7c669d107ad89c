"""List scheduling: streams and order for launches of which each takes one thread, or all of them."""

from __future__ import annotations

from collections.abc import Sequence

from collage.schedule.dag import Dag
from collage.schedule.timeline import Costs, Found, Timeline


def list_schedule(dag: Dag, costs: Costs, threads: int, alone: frozenset[int]) -> Found:
    """Those in ``alone`` on one thread each, all others on the whole team; the longest way to the end goes first.

    A launch on the team waits as long as something else can begin on a thread that would idle until then.
    O(V ready).
    """
    line = Timeline(dag, costs, threads, alone)
    urgency = [0.0] * len(dag)
    for v in reversed(range(len(dag))):
        urgency[v] = line.time_us[v] + max((urgency[w] for w in dag.successors[v]), default=0.0)
    ready = line.ready()
    while ready:
        v = _next(line, ready, alone, urgency)
        ready.remove(v)
        ready += line.add_alone(v, line.thread(v)) if v in alone else line.add_on_team(v)
    return line.finish()


def _next(line: Timeline, ready: Sequence[int], alone: frozenset[int], urgency: Sequence[float]) -> int:
    singles = [v for v in ready if v in alone]
    if len(singles) < len(ready):
        whole = max((v for v in ready if v not in alone), key=lambda v: (urgency[v], -v))
        if line.apart:  # what fits before the last thread is done
            singles = [v for v in singles if line.start(v) < max(line.free)]
        elif singles and urgency[whole] > max(urgency[v] for v in singles):
            singles = []
        if not singles:
            return whole
    return min(singles, key=lambda v: (line.start(v), -urgency[v], v))
