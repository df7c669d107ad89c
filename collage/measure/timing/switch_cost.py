"""Eq. 2.2's epsilon, the cost of one more kernel launch besides the kernel itself, timed in this process."""

from __future__ import annotations

from collections.abc import Sequence

from collage.kernel.kernel import Call
from collage.measure.timing.calls import sample_calls, summary

_ROUNDS = 3


def switch_cost_us(calls: Sequence[Call], switches: int | None = None, limit_s: float = 0.1) -> float:
    """Microseconds per switch by which alternating kernels take longer than each in a loop of its own.

    ``switches`` is the number of calls that pay for a switch, those whose library has threads of its own. None means
    that all calls do.

    The difference holds what the additive model (Eq. 2.2) leaves out: the launch from the run list, and what libraries
    do to each other (sleeping threads to wake, caches and branch predictors to warm again). It is
    ``(t(all in turn) - sum of t(each by itself)) / switches``. Each t is the least of three medians of at most
    ``limit_s`` seconds that are taken in rounds: what disturbs a timing makes it longer, and a disturbed loop of one
    kernel would hide the cost. The result is never below the launch of a call that does nothing. With fewer than two
    calls it is that launch.
    """

    def time_us(call: Call, seconds: float) -> float:
        return summary(sample_calls([call], limit_s=seconds)).median_us

    empty = time_us(_nothing, min(limit_s, 0.05))
    count = len(calls) if switches is None else switches
    if len(calls) < 2 or count < 1:
        return empty

    def in_turn() -> None:
        for call in calls:
            call()

    separate = [float("inf")] * len(calls)
    together = float("inf")
    for _ in range(_ROUNDS):
        for position, call in enumerate(calls):
            separate[position] = min(separate[position], time_us(call, limit_s))
        together = min(together, time_us(in_turn, limit_s))
    return max(empty, (together - sum(separate)) / count)


def _nothing() -> None:
    """A kernel that does nothing."""
