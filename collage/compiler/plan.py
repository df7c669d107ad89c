"""Plans, which a compile can hand over, verdicts on them, and the selection: the plan that is handed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.whole_protocol import FOLDED as FOLDED
from collage.measure.worker.whole_protocol import WRITTEN as WRITTEN
from collage.measure.worker.whole_protocol import Whole as Whole
from collage.measure_db.results import Timing
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts
from collage.runtime.suffix import SuffixExecutor
from collage.schedule.schedule import Schedule
from collage.search.candidate import Candidate
from collage.search.placement import Placement
from collage.search.transforms import PlacedTransform

SEQUENTIAL = "sequential"
MIX, CONCURRENT = "mix", "concurrent"
"""The labels of placements with their launches one after another, and with some of them side by side."""


@dataclass(frozen=True)
class StreamPlan:
    """A schedule that runs launches of a placement concurrently, and the single-threaded kernel for each of them.

    Launches on a GPU have no such kernel, and stay what they are. ``algorithm`` names the scheduling algorithm.
    """

    schedule: Schedule
    single_threaded: tuple[Candidate | PlacedTransform | None, ...]
    algorithm: str


@dataclass(frozen=True)
class Placed:
    """A plan: a placement, whose launches ``streams`` may schedule concurrently.

    A model with a dynamic suffix is placed up to there, and ``suffix`` names the engine that runs the rest.
    """

    placement: Placement
    streams: StreamPlan | None = None
    suffix: str = ""

    @property
    def label(self) -> str:
        """The name of the plan in reports."""
        return MIX if self.streams is None else CONCURRENT

    @property
    def algorithm(self) -> str:
        """The name of the scheduling algorithm."""
        return SEQUENTIAL if self.streams is None else self.streams.algorithm

    @property
    def exclusive(self) -> bool:
        """Whether idle threads of its engine may spin, since nothing else runs."""
        return len(self.placement.candidates) == 1

    @property
    def reduced(self) -> bool:
        """Whether some kernels compute in a reduced precision."""
        return any(candidate.variant.precision for candidate in self.placement.candidates)

    @property
    def alike(self) -> tuple[object, ...]:
        """What tells plans apart whose costs differ: their kernels and their schedule."""
        kernels = tuple((c.nodes, c.backend, c.variant) for c in self.placement.candidates)
        return kernels, None if self.streams is None else self.streams.schedule


Plan: TypeAlias = "Whole | Placed"


def is_reduced(plan: Plan) -> bool:
    """Whether the plan computes in a reduced precision somewhere."""
    return bool(plan.precision) if isinstance(plan, Whole) else plan.reduced


@dataclass(frozen=True)
class Ran:
    """The plan ran. Its time is ``ratio`` times that of the best one so far, in the same rounds.

    ``us`` is its time in microseconds, ``launches_us`` are the times of its launches in their places, if it is placed.
    ``error`` is the error on samples by the user's metric, and ``foreseen`` the one expected of other inputs; both are
    None without a tolerance, or if the plan computes in the model's own dtypes.
    """

    plan: Plan
    us: float
    ratio: float
    launches_us: tuple[float, ...] = ()
    error: float | None = None
    foreseen: float | None = None


@dataclass(frozen=True)
class Beyond:
    """The plan is beyond the tolerance: its error on samples, and the one foreseen of other inputs."""

    plan: Plan
    error: float
    foreseen: float
    reason: str


@dataclass(frozen=True)
class Failed:
    """The plan failed: a ``kernel`` of it is rejected from now on, or the plan as a whole, or an engine."""

    plan: Plan
    reason: str
    kernel: PlanKernel | None = None


Verdict: TypeAlias = "Ran | Beyond | Failed"


class RaceFailedError(Exception):
    """A plan of a race has failed."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.reason)
        self.failed = failed


@dataclass(frozen=True)
class Selection:
    """The plan, its module's parts, and the executor that runs them. ``timings`` are of all compared plans, by label,
    and ``by_row`` those on single rows, if the module takes any number of them.

    Times are in microseconds. ``max_abs_error`` and ``relative_error`` are the largest errors of its outputs.
    """

    plan: Plan
    parts: Parts
    executor: Executor | SuffixExecutor
    timings: Mapping[str, Timing]
    measured_us: float
    predicted_us: float
    max_abs_error: float
    relative_error: float
    error: float | None = None
    """The error on samples by the user's metric; None without a tolerance, or if it is not known."""
    by_row: Mapping[str, Timing] = field(default_factory=dict)
    unmeasured: str = ""
    """The reason why the module was neither measured nor checked, or "" if it was."""
