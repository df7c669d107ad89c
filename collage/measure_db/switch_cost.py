"""Eq. 2.2's epsilon: what one more kernel launch costs beside the kernels themselves."""

from __future__ import annotations

from collections.abc import Sequence

from collage.kernel.kernel import Call
from collage.measure_db.timing import time_calls

_ROUNDS = 3


def switch_cost_us(calls: Sequence[Call], switches: int | None = None, limit_s: float = 0.1) -> float:
    """Microseconds per switch by which alternating kernels take longer than each in a loop of its own.

    ``switches`` is how many of the calls pay for one: those whose library has threads of its own; None: all.

    The difference holds what the additive model (Eq. 2.2) leaves out: the launch from the run list, and what
    libraries do to each other (sleeping threads to wake, caches and branch predictors to warm again). It is
    ``(t(all in turn) - sum of t(each alone)) / switches``, each t the least of three medians of at most
    ``limit_s`` seconds, taken in rounds: what disturbs a timing makes it longer, and a disturbed "alone"
    would hide the cost. Never below the launch of a call that does nothing, which it is with fewer than two
    calls.
    """
    empty = time_calls([_nothing], limit_s=min(limit_s, 0.05)).median_us
    count = len(calls) if switches is None else switches
    if len(calls) < 2 or count < 1:
        return empty

    def in_turn() -> None:
        for call in calls:
            call()

    alone = [float("inf")] * len(calls)
    together = float("inf")
    for _ in range(_ROUNDS):
        for position, call in enumerate(calls):
            alone[position] = min(alone[position], time_calls([call], limit_s=limit_s).median_us)
        together = min(together, time_calls([in_turn], limit_s=limit_s).median_us)
    return max(empty, (together - sum(alone)) / count)


def _nothing() -> None:
    pass
