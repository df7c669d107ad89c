"""What a compile has chosen, ready to be handed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collage.measure_db.timing import Timing
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts
from collage.runtime.tail import TailExecutor


@dataclass(frozen=True)
class Selection:
    """The module's parts and what runs them; ``timings`` are those of all that it was compared with, by label.

    Times are in microseconds. ``max_abs_error`` and ``relative_error`` are how far its outputs are off, and
    ``schedule`` names the algorithm that its streams come from.
    """

    label: str
    parts: Parts
    executor: Executor | TailExecutor
    timings: Mapping[str, Timing]
    measured_us: float
    predicted_us: float
    max_abs_error: float
    relative_error: float
    schedule: str
    unmeasured: str = ""
    """The reason why the module was neither measured nor checked, or "" if it was."""
