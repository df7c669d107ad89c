"""Where a worker is in a plan, in files that outlive it: whoever crashes or hangs is known afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collage.graph.dataflow import Array
from collage.measure_db.plan_protocol import Plan, Stage
from collage.schedule.schedule import Ordered

_STAGES = 16


class Place:
    """The stage and the plan's number in one element, so that one store tells both, and the launch in another."""

    def __init__(self, folder: str | Path) -> None:
        """Made by the worker, read by the compiler; both may open it."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._at = _mapped(Path(folder) / "place", 2)

    def enter(self, stage: Stage, plan: int = 0, launch: int = -1) -> None:
        """Now begins that stage."""
        self._at[0] = _STAGES * plan + stage
        self._at[1] = launch

    @property
    def now(self) -> tuple[Stage, int, int]:
        """Stage, plan and launch; -1 for none."""
        plan, stage = divmod(int(self._at[0]), _STAGES)
        return Stage(stage), plan, int(self._at[1])

    def mark(self, plan: int) -> None:
        """A timed run of that plan begins: as quick as can be."""
        self._at[0] = _STAGES * plan + Stage.TIMED


def clock_of(folder: str | Path, name: str, launches: int) -> Array:
    """When each launch of the plan ended in the run that is going on, 0 for those that have not."""
    return _mapped(Path(folder) / f"clock-{name}", max(launches, 1))[:launches]


def blame(folder: str | Path, plans: Sequence[Plan]) -> tuple[int, int | None]:
    """Which of the plans it was, and at which of its launches, where that is known."""
    stage, number, launch = Place(folder).now
    plan = plans[number]
    if stage in (Stage.LOAD, Stage.CHECK):
        return number, launch
    if stage is not Stage.NOTED:
        return number, None
    ordered = plan.program.ordered
    return number, running(ordered, [int(end) for end in clock_of(folder, plan.name, len(plan.kernels))])


def running(ordered: Ordered, clock: Sequence[int]) -> int | None:
    """The launch that was running, if it can have been only one: all that it waits for has ended, and it has not."""
    ended = sum(1 << v for v, end in enumerate(clock) if end)
    possible = [v for v, before in enumerate(ordered.before) if not clock[v] and before & ended == before]
    return possible[0] if len(possible) == 1 else None


def _mapped(path: Path, count: int) -> Array:
    if not path.exists():
        path.write_bytes(bytes(8 * count))
    return np.asarray(np.memmap(path, np.int64, "r+", shape=(count,)))
