"""Where a worker is in a plan, in files that outlive it, so that the launch which crashes or hangs is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from collage.graph.dataflow import Array
from collage.measure.worker.plan_protocol import Plan, Stage
from collage.schedule.schedule import running


class WorkerPosition:
    """What a worker does with a plan, and the launch that it is about."""

    def __init__(self, folder: str | Path) -> None:
        """Open the file in the folder, or make it. The worker writes it, and the compiler reads it."""
        Path(folder).mkdir(exist_ok=True)
        self._at = _mapped(Path(folder) / "place", 2)

    def enter(self, stage: Stage, launch: int = -1) -> None:
        """Note that the stage begins. ``launch`` is -1 if it is about no launch."""
        self._at[0] = stage
        self._at[1] = launch

    @property
    def now(self) -> tuple[Stage, int]:
        """The stage, and the launch, or -1 for none."""
        return Stage(int(self._at[0])), int(self._at[1])

    def mark(self) -> None:
        """Note that a timed run begins. It is a single store, since it is timed, too."""
        self._at[0] = Stage.TIMED


def clock_of(folder: str | Path, name: str, launches: int) -> Array:
    """The times in ns when each launch of the plan ended in the current run, with 0 for those that have not ended."""
    return _mapped(Path(folder) / f"clock-{name}", max(launches, 1))[:launches]


def blame(folder: str | Path, plan: Plan) -> int | None:
    """The launch of the plan that the worker was in when it died, or None if that is not known."""
    stage, launch = WorkerPosition(folder).now
    if stage in (Stage.LOAD, Stage.CHECK):
        return launch
    if stage is not Stage.NOTED:
        return None
    return running(plan.program.ordered, [int(end) for end in clock_of(folder, plan.name, len(plan.kernels))])


def _mapped(path: Path, count: int) -> Array:
    if not path.exists():
        path.write_bytes(bytes(8 * count))
    return np.asarray(np.memmap(path, np.int64, "r+", shape=(count,)))
