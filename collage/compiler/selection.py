"""The selection: what a compile hands over, loaded and ready for the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collage.compiler.plan import Plan
from collage.measure_db.results import Timing
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts
from collage.runtime.suffix import SuffixExecutor


@dataclass(frozen=True)
class Selection:
    """The plan, its module's parts, and the executor that runs them. ``timings`` are of all compared plans, by label.

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
    predicted_error: float = 0.0
    """What the search predicts of the error of the outputs in reduced precision, as a share of their scale."""
    error: float | None = None
    """The error on samples by the user's metric; None without a tolerance, or if it is not known."""
    unmeasured: str = ""
    """The reason why the module was neither measured nor checked, or "" if it was."""
