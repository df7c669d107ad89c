"""Plans: what a compile can hand over. A plan is a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from collage.measure.worker.whole_protocol import FOLDED, WRITTEN, Whole
from collage.schedule.schedule import Schedule
from collage.search.candidate import Candidate
from collage.search.placement import Placement
from collage.search.transforms import PlacedTransform

__all__ = ["CONCURRENT", "FOLDED", "MIX", "SEQUENTIAL", "WRITTEN", "Placed", "Plan", "StreamPlan", "Whole"]

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

    label: str
    placement: Placement
    streams: StreamPlan | None = None
    suffix: str = ""

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
