"""The messages between the compiler and the worker about plans, which are whole networks of measured kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Rejection

if TYPE_CHECKING:
    from collage.graph.storage import Storage
    from collage.schedule.program import Program


@dataclass(frozen=True)
class PlanKernel:
    """What a launch runs, and the options that it is built with."""

    what: CandidateRequest | LayoutTransform
    options: BuildOptions

    @property
    def key(self) -> str:
        """The key of its artifact, in one model. ``options.exclusive`` is left out, since only ``load`` reads it."""
        options = self.options
        if isinstance(self.what, LayoutTransform):
            text = repr((self.what, options.threads))
        else:
            request = self.what
            about = (request.nodes, request.backend, request.variant)
            text = repr((*about, options.tuning, options.threads))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Plan:
    """A program with what each of its launches runs.

    ``stored`` has the value and the storage of each buffer that is no plain value.
    """

    program: Program
    kernels: tuple[PlanKernel, ...]
    stored: Mapping[int, tuple[int, Storage]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A digest of the plan, which identifies it among the plans of one model."""
        regions = [
            (r.nodes, r.inputs, r.outputs, r.exclusive, r.stream, r.scans) for r in self.program.regions
        ]
        about = (regions, self.program.ordered.schedule, [kernel.key for kernel in self.kernels])
        more = [sorted(each.items()) for each in (self.program.limits, self.program.assumed) if each]
        text = repr((*about, *more) if more else about)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class Stage(IntEnum):
    """What a worker is doing with a plan."""

    IDLE = 0
    LOAD = 1
    BIND = 2
    CHECK = 3
    NOTED = 4
    TIMED = 5


@dataclass(frozen=True)
class Make:
    """Build a candidate and keep its artifact; the plan that it is for checks it. Reply: Made, or a Rejection."""

    kernel: PlanKernel
    limit_s: float


@dataclass(frozen=True)
class Made:
    """The artifact is made and kept."""


@dataclass(frozen=True)
class BuildAhead:
    """Build a candidate, and keep its artifact for the worker that measures it. Reply: BuiltAhead, or a Rejection."""

    kernel: PlanKernel
    limit_s: float


@dataclass(frozen=True)
class BuiltAhead:
    """The artifact is made and kept, which took so many seconds."""

    seconds: float


@dataclass(frozen=True)
class OpenPlan:
    """Load a plan's kernels, whose artifacts are kept, and check and run it. Reply: PlanOpened or PlanFailed.

    Of the plans that are open already, those whose names are in ``keep`` stay open, and it may share loaded kernels
    with them. A plan that is opened ``alone`` shares none, as in the process that it is handed over to, and runs a few
    times without notes.
    """

    name: str
    plan: Plan
    keep: tuple[str, ...]
    limit_s: float
    alone: bool = False


@dataclass(frozen=True)
class PlanOpened:
    """The plan is open. Its longest run took ``run_s`` seconds."""

    run_s: float


@dataclass(frozen=True)
class NotePlan:
    """Run an open plan for ``seconds``, and note the end of each launch. Reply: PlanTimes or PlanFailed."""

    name: str
    seconds: float
    limit_s: float


@dataclass(frozen=True)
class PlanTimes:
    """The microseconds of each launch."""

    launches_us: tuple[float, ...]


@dataclass(frozen=True)
class TurnPlan:
    """Take a turn with an open plan (see ``interleave.take_turn``). Reply: nanoseconds, or PlanFailed."""

    name: str
    settle_s: float
    turn_s: float
    limit_s: float


@dataclass(frozen=True)
class RunPlan:
    """Run an open plan on the inputs in a file. Reply: PlanRan or PlanFailed.

    Its outputs are written to another file. Both files hold a pickled list of arrays.
    """

    name: str
    inputs_path: str
    outputs_path: str
    limit_s: float


@dataclass(frozen=True)
class PlanRan:
    """The outputs are in the file. ``careful`` tells that guards found what the kernels are not right on."""

    careful: bool


@dataclass(frozen=True)
class PlanFailed:
    """A plan that has failed, and the launch that is to blame, or None where that is not known.

    ``plan`` is its number among those that the message names.
    """

    rejection: Rejection
    launch: int | None
    plan: int = 0
