"""Inter-op parallelism: which launches run at the same time, on one thread each, by measured cost.

A launch takes the whole team for ``team_us`` or one thread for ``single_threaded_us`` (moldable tasks). Which is better
depends on what else could run meanwhile, so modes and streams are chosen together. An algorithm (list scheduling, or
Nimble's or Opara's streams mapped to threads) decides streams and order for given modes, and a local search changes the
modes. It starts from the sequential schedule and keeps what is better, so by the given costs the result is never longer
than that.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage.schedule.dag import Dag
from collage.schedule.list_schedule import list_schedule
from collage.schedule.schedule import Schedule
from collage.schedule.timeline import Algorithm, Costs, TimedSchedule

_ROUNDS = 4
_LAUNCHES_TRIED, _LEAST_TRIES = 100_000, 100
"""How much is tried in large networks: some 10 us a launch, so about a second."""


def schedule_inter_op(dag: Dag, costs: Costs, threads: int, algorithm: Algorithm = list_schedule) -> TimedSchedule:
    """The best schedule found for a team of ``threads`` threads; the sequential one where no other is shorter."""
    count = len(dag)
    best = TimedSchedule(Schedule.sequential(count), sum(costs.team_us))
    if threads < 2 or count < 2:
        return best
    possible = [v for v in range(count) if costs.single_threaded_us[v] is not None]
    everybody = frozenset(possible)
    starts = [everybody, frozenset(v for v in possible if _scales_badly(costs, v, threads)), frozenset[int]()]
    single_threaded = min(starts, key=lambda each: algorithm(dag, costs, threads, each).time_us)
    found = algorithm(dag, costs, threads, single_threaded)
    groups = _groups(dag, possible)
    groups.sort(key=lambda group: (-sum(costs.team_us[v] for v in group), min(group)))
    left = max(_LEAST_TRIES, _LAUNCHES_TRIED // count)
    for _ in range(_ROUNDS):
        before = found.time_us
        for group in groups:
            for changed in (single_threaded | group, single_threaded - group):
                if changed == single_threaded or not left:
                    continue
                left -= 1
                tried = algorithm(dag, costs, threads, changed)
                if tried.time_us < found.time_us:
                    found, single_threaded = tried, changed
        if found.time_us >= before:
            break
    return found if found.time_us < best.time_us else best


def _scales_badly(costs: Costs, v: int, threads: int) -> bool:
    us = costs.single_threaded_us[v]
    return us is not None and us < costs.team_us[v] * (1 + threads) / 2


def _groups(dag: Dag, possible: Sequence[int]) -> list[frozenset[int]]:
    """Sets of launches that change their mode together: single ones, chains of them, and all at one depth."""
    can = set(possible)
    depth: list[int] = []
    chains: dict[int, list[int]] = {}
    head: dict[int, int] = {}
    for v, before in enumerate(dag.predecessors):
        depth.append(1 + max((depth[u] for u in before), default=-1))
        if v not in can:
            continue
        u = before[0] if len(before) == 1 else -1
        head[v] = head[u] if u in head and len(dag.successors[u]) == 1 else v
        chains.setdefault(head[v], []).append(v)
    levels: dict[int, list[int]] = {}
    for v in possible:
        levels.setdefault(depth[v], []).append(v)
    pairs = [
        frozenset(a) | frozenset(b)
        for a, b in zip(chains.values(), list(chains.values())[1:], strict=False)
        if dag.independent(a[0], b[0])
    ]
    groups = [*map(frozenset, levels.values()), *map(frozenset, chains.values()), *pairs]
    return list(dict.fromkeys([*groups, *(frozenset((v,)) for v in possible)]))
