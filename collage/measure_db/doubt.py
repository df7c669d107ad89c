"""Measurements that a busy machine has disturbed are made again when the machine is quiet, and somebody needs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property

from collage.measure_db.busy import is_busy
from collage.measure_db.results import Measurement, Outcome
from collage.measure_db.timing import Timing


class Doubt:
    """Doubts what was measured before it was made, while the machine was busy, if the machine is quiet now.

    Whether it is quiet is asked once, and only if there is such a measurement. What is measured from now on is not
    doubted, so that nothing is measured twice in one compile.
    """

    def __init__(self, quiet_now: Callable[[], bool]) -> None:
        self._ask = quiet_now
        self._since = time.time()

    def __call__(self, found: Outcome | Timing, created: float) -> bool:
        """Whether what was found, and recorded at that ``time.time()``, is doubted."""
        if not isinstance(found, (Measurement, Timing)) or not is_busy(found.busy) or created >= self._since:
            return False
        return self._quiet

    @cached_property
    def _quiet(self) -> bool:
        return self._ask()
