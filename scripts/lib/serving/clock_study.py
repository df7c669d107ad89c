"""Orca's trace on a clock: what each form of scheduling can serve at a latency, from the costs of iterations alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from scripts.lib.serving.clock import serve_on_clock
from scripts.lib.serving.field import OURS, REQUEST_LEVEL, STATIC
from scripts.lib.serving.iteration_costs import IterationCosts
from scripts.lib.serving.record import Figures, figures
from scripts.lib.serving.trace import Lengths, poisson_trace
from scripts.lib.studies.each import say

_ALONE = 24
_STEPS = 10
"""The rate at a latency is searched for in so many halvings of what can be served."""


def on_clock(
    costs: IterationCosts,
    *,
    requests: int,
    few: int,
    running: int,
    rates: Sequence[float],
    relative: bool,
    vocabulary: int,
    lengths: Lengths,
) -> dict[str, Any]:
    """Each form saturated, at the rates, and the rate that it can serve at twice Collage's unloaded latency.

    Runs have so many ``requests``. The last rate is given for runs of ``few``, too, to tell what such runs are worth.
    ``rates`` are requests a second, or shares of Collage's saturated rate where they are ``relative``; those that a
    form cannot serve are left out. ``vocabulary`` is the model's: the lengths of a trace go with it.
    """

    def run(name: str, rate: float, count: int) -> Figures:
        arrivals = poisson_trace(count, rate, vocabulary, lengths)
        return figures(serve_on_clock(name, costs, arrivals, running))

    alone = poisson_trace(_ALONE, math.inf, vocabulary, lengths, seed=7)
    unloaded_ms = statistics.median(
        figures(serve_on_clock(OURS, costs, [each], running)).latency_ms for each in alone
    )

    top = run(OURS, math.inf, requests).requests_per_s if relative else 1.0

    def row(name: str) -> dict[str, Any]:
        saturated = run(name, math.inf, requests).requests_per_s

        def at_twice(count: int) -> float:
            return rate_within(lambda rate: run(name, rate, count).latency_ms, 2 * unloaded_ms, saturated)

        say(f"{name} on a clock: {saturated:.2f} requests/s saturated")
        return {
            "saturated": saturated,
            "rate_at_twice_unloaded": at_twice(requests),
            "with_few_requests": at_twice(few),
            "rates": [
                {"rate": rate, "latency_ms": run(name, rate, requests).latency_ms}
                for rate in (share * top for share in rates)
                if rate < saturated
            ],
        }

    return {
        "costs": costs.as_message(),
        "requests": requests,
        "few_requests": few,
        "unloaded_ms": unloaded_ms,
        "by_form": {name: row(name) for name in (OURS, REQUEST_LEVEL, *STATIC)},
    }


def rate_within(latency_ms: Callable[[float], float], most_ms: float, saturated: float) -> float:
    """The highest rate at which the latency is at most that, and at most what can be served saturated.

    At a higher rate requests wait the longer the more of them there are.
    """
    low, high = 0.0, saturated
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if latency_ms(middle) <= most_ms:
            low = middle
        else:
            high = middle
    return low
