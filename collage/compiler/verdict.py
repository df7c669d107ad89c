"""Verdicts: what came of a plan that was run beside the best one so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from collage.compiler.plan import Plan
from collage.measure.worker.plan_protocol import PlanKernel


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
