"""Where the time of measuring goes: seconds by kind of work, in the process that measures."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

BUILD, COPIES, REFERENCE, CHECK = "building kernels", "copies of weights", "reference values", "checks"
RACE = "races"
AHEAD = "building kernels beside that"
"""Work of another process, on a core that nobody needed then."""
TRANSFORMS, NETWORKS = "layout transforms", "whole networks"

_seconds: defaultdict[str, float] = defaultdict(float)
_inside: list[str] = []


@contextmanager
def spent(what: str) -> Iterator[None]:
    """Count the time inside the block as that kind of work. A block inside it counts as its own kind only."""
    started = time.perf_counter()
    _inside.append(what)
    try:
        yield
    finally:
        _inside.pop()
        passed = time.perf_counter() - started
        _seconds[what] += passed
        if _inside:
            _seconds[_inside[-1]] -= passed


def taken() -> Mapping[str, float]:
    """The seconds since the last call, by kind of work."""
    found = {what: round(seconds, 3) for what, seconds in _seconds.items()}
    _seconds.clear()
    return found
