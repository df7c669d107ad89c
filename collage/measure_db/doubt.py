"""Measurements that a busy machine has disturbed are made again when the machine is quiet, and somebody needs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property

from collage.measure_db.busy import is_busy


class Doubt:
    """Doubts what was measured before it was made, while the machine was busy, if the machine is quiet now.

    Whether it is quiet is asked once, and only if there is such a measurement. What is measured from now on is not
    doubted, so that nothing is measured twice in one compile.
    """

    def __init__(self, quiet_now: Callable[[], bool]) -> None:
        self._ask = quiet_now
        self._since = time.time()

    def __call__(self, busy: float | None, created: float) -> bool:
        """Whether a measurement is doubted that was recorded at that ``time.time()``, on a machine that busy."""
        return is_busy(busy) and created < self._since and self._quiet

    @cached_property
    def _quiet(self) -> bool:
        return self._ask()
