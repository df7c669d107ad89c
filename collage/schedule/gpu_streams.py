"""Schedules on streams of a GPU: Nimble's and Opara's, for the launches there that follow each other.

Launches on the host, and copies to the GPU and back, stay where they are in the order, except that copies of the
model's inputs come first. Each run of launches between them is scheduled by itself. All streams of a run begin and end
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeAlias

from collage.schedule.dag import Dag
from collage.schedule.nimble import nimble_streams
from collage.schedule.opara import opara_order, opara_streams
from collage.schedule.schedule import TEAM, Schedule

__all__ = ["ALGORITHMS", "gpu_schedule", "gpu_schedules"]

ALGORITHMS = ("nimble", "nimble, opara's order", "opara")
"""The names of the algorithms that make schedules. Where not all of them can be compared, the last ones are."""

_MUCH = 0.5
"""A launch that moves its bytes at this share of the highest rate, or at more, is bound by memory."""

_Algorithm: TypeAlias = Callable[[Dag, Sequence[int]], tuple[Sequence[int], Sequence[int]]]
"""The order and the streams of a graph's nodes, given which launches they are."""


def gpu_schedules(
    dag: Dag, on_gpu: Sequence[bool], cost_us: Sequence[float], moved_bytes: Sequence[int]
) -> dict[str, Schedule]:
    """Schedules by the names of their algorithms; none where no two launches on the GPU are independent.

    The arguments are those of ``gpu_schedule``.
    """
    found = {name: gpu_schedule(name, dag, on_gpu, cost_us, moved_bytes) for name in ALGORITHMS}
    return {name: each for name, each in found.items() if each.count > 1}


def gpu_schedule(
    name: str, dag: Dag, on_gpu: Sequence[bool], cost_us: Sequence[float], moved_bytes: Sequence[int]
) -> Schedule:
    """The schedule of one of the ``ALGORITHMS``.

    ``on_gpu`` is ``Program.on_gpu``. ``cost_us`` are microseconds, and ``moved_bytes`` the bytes that each launch reads
    and writes, weights included. Opara's order takes them as the demand for resources, and their rate as the sign of
    what bounds a launch.
    """
    rates = [n / us if us > 0 else 0.0 for n, us in zip(moved_bytes, cost_us, strict=True)]
    much = _MUCH * max((rate for rate, there in zip(rates, on_gpu, strict=True) if there), default=0.0)

    def nimble(part: Dag, _: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        return range(len(part)), nimble_streams(part)

    def opara(part: Dag, which: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        bound = [rates[v] >= much for v in which]
        return opara_order(part, bound, [moved_bytes[v] for v in which]), opara_streams(part)

    def nimble_in_order(part: Dag, which: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        return opara(part, which)[0], nimble_streams(part)

    algorithms: Sequence[_Algorithm] = (nimble, nimble_in_order, opara)
    return _schedule(dag, on_gpu, dict(zip(ALGORITHMS, algorithms, strict=True))[name])


def _schedule(dag: Dag, on_gpu: Sequence[bool], algorithm: _Algorithm) -> Schedule:
    first = [v for v in range(len(dag)) if not on_gpu[v] and not dag.predecessors[v]]
    base = [*first, *(v for v in range(len(dag)) if v not in set(first))]
    order: list[int] = []
    streams = [TEAM] * len(dag)
    for there, group in groupby(base, on_gpu.__getitem__):
        which = list(group)
        if not there or len(which) < 2:
            order += which
            continue
        position = {v: at for at, v in enumerate(which)}
        edges = [(position[u], position[v]) for v in which for u in dag.predecessors[v] if u in position]
        part = Dag.of_edges(len(which), edges)
        inner, numbers = algorithm(part, which)
        order += [which[at] for at in inner]
        for at, number in enumerate(numbers):
            streams[which[at]] = number
    return Schedule(tuple(order), tuple(streams))
