"""What the compiler and the worker say to each other about plans: whole networks of kernels that were measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform
from collage.measure_db.effort import Effort
from collage.measure_db.protocol import Request
from collage.measure_db.results import Rejection
from collage.measure_db.timing import Timing

if TYPE_CHECKING:
    from collage.graph.storage import Storage
    from collage.schedule.program import Program


@dataclass(frozen=True)
class PlanKernel:
    """What a launch runs, and what it was built for."""

    what: Request | LayoutTransform
    options: BuildOptions

    @property
    def key(self) -> str:
        """Of its artifact, in one model. ``options.exclusive`` is no part of it: that is for ``load`` alone."""
        options = self.options
        if isinstance(self.what, LayoutTransform):
            text = repr((self.what, options.threads))
        else:
            request = self.what
            about = (request.nodes, request.backend, request.variant, request.original, request.profile)
            text = repr((*about, options.tuning, options.threads))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Plan:
    """A program with what each of its launches runs.

    ``stored`` has the value and the storage of each buffer that is no plain value. ``name`` is the same for equal plans
    of one model only.
    """

    program: Program
    kernels: tuple[PlanKernel, ...]
    stored: Mapping[int, tuple[int, Storage]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A digest."""
        regions = [
            (r.nodes, r.inputs, r.outputs, r.exclusive, r.stream, r.scans) for r in self.program.regions
        ]
        text = repr((regions, self.program.ordered.schedule, [kernel.key for kernel in self.kernels]))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class Stage(IntEnum):
    """What a worker is doing with a plan."""

    IDLE = 0
    LOAD = 1
    BIND = 2
    CHECK = 3
    NOTED = 4
    TIMED = 5
    SWITCH = 6
    """Timing kernels in turn, which are no plan."""


@dataclass(frozen=True)
class Make:
    """Build a candidate and keep its artifact; the plan that it is for checks it. Reply: Made, or a Rejection."""

    kernel: PlanKernel
    limit_s: float


@dataclass(frozen=True)
class Made:
    """The artifact is kept."""


@dataclass(frozen=True)
class OpenPlan:
    """Load a plan's kernels, whose artifacts are kept, and check and run it. Reply: PlanOpened or PlanFailed.

    Of the plans that are open already those in ``keep`` stay so.
    """

    name: str
    plan: Plan
    keep: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True)
class PlanOpened:
    """The longest run took ``run_s`` seconds."""

    run_s: float


@dataclass(frozen=True)
class NotePlan:
    """Run an open plan for ``seconds``, with the end of each launch noted. Reply: PlanTimes or PlanFailed."""

    name: str
    seconds: float
    limit_s: float


@dataclass(frozen=True)
class PlanTimes:
    """Microseconds of each launch."""

    launches_us: tuple[float, ...]


@dataclass(frozen=True)
class ComparePlans:
    """Run open plans against each other, with runs between that are noted. Reply: PlansCompared or PlanFailed.

    ``early`` and ``least`` are those of ``interleave``.
    """

    names: tuple[str, ...]
    effort: Effort
    early: int
    least: int
    noted: bool
    limit_s: float


@dataclass(frozen=True)
class PlansCompared:
    """Timings, and microseconds of each launch, in the order that the plans were named in."""

    timings: tuple[Timing, ...]
    launches_us: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class RunPlan:
    """Run an open plan on the inputs in the file ``given``. Reply: PlanRan or PlanFailed.

    Its outputs are written to the file ``made``: pickled lists of arrays.
    """

    name: str
    given: str
    made: str
    limit_s: float


@dataclass(frozen=True)
class PlanRan:
    """The outputs are in the file. ``careful`` tells that guards found what the kernels are not right on."""

    careful: bool


@dataclass(frozen=True)
class TimePlan:
    """Time an open plan alone, for ``sample_s`` seconds. Reply: a Timing or PlanFailed."""

    name: str
    sample_s: float
    limit_s: float


@dataclass(frozen=True)
class PlanFailed:
    """A plan that did not do what it should, and the launch that is to blame, where that is known.

    ``plan`` is its number among those that the message names.
    """

    rejection: Rejection
    launch: int | None
    plan: int = 0
