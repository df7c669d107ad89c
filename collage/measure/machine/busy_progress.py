"""Progress that says when the machine is busy, and how much longer measuring takes therefore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from collage.core.progress import Progress
from collage.measure_db.busy import in_words, is_busy
from collage.measure_db.results import Measurement, Outcome

_SMOOTHING = 0.2
"""The weight of the latest measurement: a single one tells little."""


class BusyProgress:
    """Shows progress, with a note as long as the measurements tell that the machine is busy."""

    def __init__(self, show: Callable[[Progress], None]) -> None:
        self._show = show
        self._busy = 0.0

    def note(self, outcome: Outcome) -> None:
        """Learn from an outcome how busy the machine was."""
        if isinstance(outcome, Measurement) and outcome.busy is not None:
            self._busy += _SMOOTHING * (outcome.busy - self._busy)

    def __call__(self, progress: Progress) -> None:
        self._show(replace(progress, note=in_words(self._busy)) if is_busy(self._busy) else progress)
