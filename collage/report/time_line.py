"""The time line of a program by its measured costs: when each launch runs, on which threads, and which threads wait."""

from __future__ import annotations

from dataclasses import dataclass

from collage.schedule.program import Program
from collage.schedule.region import Region
from collage.schedule.schedule import TEAM


@dataclass(frozen=True)
class Bar:
    """A region that runs from ``start_us`` to ``end_us`` on the rows from ``first`` up to ``end``."""

    region: int
    first: int
    end: int
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Wait:
    """A row on which nothing runs for a while, before or between launches."""

    row: int
    start_us: float
    end_us: float


@dataclass(frozen=True)
class TimeLine:
    """Rows of threads, or of a GPU's streams, with what runs on them."""

    rows: tuple[str, ...]
    bars: tuple[Bar, ...]
    waits: tuple[Wait, ...]
    end_us: float


def time_line(program: Program) -> TimeLine:
    """The time line by the regions' costs; waiting for others takes no time by itself.

    It has a row for each stream, and one row if each launch takes the whole team.
    """
    ordered = program.ordered
    schedule = ordered.schedule
    count = max(schedule.count, 1)
    numbers = {id(region): number for number, region in enumerate(program.regions)}
    free, ends, bars, waits = [0.0] * count, [0.0] * len(program.launches), [], []

    def add(region: Region, first: int, end: int, start: float) -> float:
        for row in range(first, end):
            if start > free[row]:
                waits.append(Wait(row, free[row], start))
            free[row] = start + region.cost_us
        bars.append(Bar(numbers[id(region)], first, end, start, start + region.cost_us))
        return start + region.cost_us

    for v in schedule.order:
        region, stream = program.launches[v], schedule.streams[v]
        if stream == TEAM:
            ends[v] = add(region, 0, count, max(free))
        else:
            start = max([free[stream], *(ends[u] for u in ordered.dag.predecessors[v])])
            ends[v] = add(region, stream, stream + 1, start)
    if program.suffix is not None:
        add(program.suffix.region, 0, count, max(free))
    return TimeLine(_rows(program, count), tuple(bars), tuple(waits), max(free))


def _rows(program: Program, count: int) -> tuple[str, ...]:
    if not program.ordered.schedule.count:
        return (f"{program.threads} thread{'s' if program.threads != 1 else ''}",)
    name = "stream" if any(program.on_gpu) else "thread"
    return tuple(f"{name} {number}" for number in range(count))
