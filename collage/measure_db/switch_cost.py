"""Eq. 2.2's epsilon: what one more kernel launch costs beside the kernels themselves."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from collage.backends.base import Call
from collage.measure_db.timing import time_calls

_ROUNDS = 3


def switch_cost_us(calls: Sequence[Call], limit_s: float = 0.25) -> float:
    """Microseconds per launch by which alternating kernels take longer than each in a loop of its own.

    The difference holds what the additive model (Eq. 2.2) leaves out: the launch from the run list, and what
    libraries do to each other (thread pools that spin, caches and branch predictors to warm again). It is the
    median of three rounds of ``(t(all in turn) - sum of t(each alone)) / number``, with each timing at most
    ``limit_s`` seconds, and never below the launch of a call that does nothing. With fewer than two calls it
    is that launch.
    """
    empty = time_calls([_nothing], limit_s=min(limit_s, 0.05)).median_us
    if len(calls) < 2:
        return empty

    def in_turn() -> None:
        for call in calls:
            call()

    extra = []
    for _ in range(_ROUNDS):
        alone = sum(time_calls([call], limit_s=limit_s).median_us for call in calls)
        extra.append((time_calls([in_turn], limit_s=limit_s).median_us - alone) / len(calls))
    return max(empty, median(extra))


def _nothing() -> None:
    pass
