"""The messages between the compiler and the worker about plans, which are whole networks of measured kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from collage.backends.base import VIEW
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
    def is_view(self) -> bool:
        """Whether it is a view, which has one kernel and takes no time."""
        return isinstance(self.what, CandidateRequest) and self.what.backend == VIEW

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
        regions = [(r.nodes, r.inputs, r.outputs, r.exclusive, r.stream, r.scans) for r in self.program.regions]
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
class PlanFailed:
    """A plan that has failed, and the launch that is to blame, or None if that is not known."""

    rejection: Rejection
    launch: int | None
