"""The native core: one team of pinned threads for the process, and launch lists that run without Python."""

from collage.native.launch import (
    Events,
    LaunchList,
    Mode,
    NativeKernel,
    Step,
    Task,
    TaskError,
    in_sequence,
    note_time,
    touch_interleaved,
)
from collage.native.library import core_problem
from collage.native.scratch import sharing_scratch
from collage.native.team import Team, beside_team, team_of

__all__ = [
    "Events",
    "LaunchList",
    "Mode",
    "NativeKernel",
    "Step",
    "Task",
    "TaskError",
    "Team",
    "beside_team",
    "core_problem",
    "in_sequence",
    "note_time",
    "sharing_scratch",
    "team_of",
    "touch_interleaved",
]
