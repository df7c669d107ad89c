"""The native core: one team of pinned threads for the process, and launch lists that run without Python."""

from collage.native.launch import (
    LaunchList,
    Mode,
    NativeKernel,
    Step,
    Task,
    TaskError,
    note_time,
    touch_in_turns,
)
from collage.native.library import core_problem
from collage.native.team import Team, beside_team, team_of

__all__ = [
    "LaunchList",
    "Mode",
    "NativeKernel",
    "Step",
    "Task",
    "TaskError",
    "Team",
    "beside_team",
    "core_problem",
    "note_time",
    "team_of",
    "touch_in_turns",
]
