"""Which candidates of a region deserve many samples: those whose time is near that of the fastest so far.

The fastest one is found sooner when the candidates come first that were fast on the regions before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import TypeAlias

from collage.kernel.options import Variant
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Outcome

_HOPELESS = 1.5
"""A candidate is hopeless when it takes this many times as long as the fastest one of the same operators. A layout that
suits the neighbours is seldom worth as much."""
_SLACK_US = 20.0
"""This is added, for regions that take no longer than a context switch or a layout transform."""

_Kind: TypeAlias = "tuple[str, Variant]"


class Contenders:
    """What was measured of the regions of one model, on the same number of threads."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, ...], dict[_Kind, float]] = {}
        self._losses: dict[_Kind, list[float]] = defaultdict(list)
        """On each region that is complete: the logarithm of the candidate's time over that of the fastest one."""
        self._new: set[tuple[int, ...]] = set()

    def in_order(self, requests: Iterable[Request]) -> list[Request]:
        """The requests of one region, in the order of how fast their backends were on other regions."""
        for nodes in self._new:
            fastest = min(self._times[nodes].values())
            for kind, us in self._times[nodes].items():
                self._losses[kind].append(math.log(us / fastest))
        self._new.clear()
        return sorted(requests, key=lambda request: fmean(self._losses.get(_kind(request), (0.0,))))

    def hopeless_us(self, request: Request) -> float:
        """The microseconds above which the candidate's time need not be precise; infinite for a region's first one."""
        times = self._times.get(request.nodes)
        return _HOPELESS * min(times.values()) + _SLACK_US if times else math.inf

    def note(self, request: Request, outcome: Outcome) -> None:
        """Record the candidate's time, where it has one."""
        if isinstance(outcome, Measurement) and outcome.median_us > 0:
            self._times.setdefault(request.nodes, {})[_kind(request)] = outcome.median_us
            self._new.add(request.nodes)


def _kind(request: Request) -> _Kind:
    return request.backend, request.variant
