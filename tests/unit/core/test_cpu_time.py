"""Where the cores' time went, from the system's clocks."""

from __future__ import annotations

import pytest

from collage.core.cpu_time import Cpu, CpuReading, queued, stolen, taken

STAT = """cpu  900 0 0 900 0 0 0 0 0 0
cpu0 100 20 30 400 50 0 0 7 0 0
cpu1 100 20 30 600 50 0 0 3 0 0
cpu2 900 0 0 1 0 0 0 90 0 0
ctxt 5
procs_running 3
"""
FILES = {"/proc/stat": STAT, "/proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n"}


def reading(
    wall: float, *, idle: float = 0.0, stolen: float = 0.0, own: float = 0.0, queued: float | None = None
) -> CpuReading:
    return CpuReading(wall, idle, stolen, own, queued, 1)


def test_the_clocks_of_the_cores_that_may_be_used() -> None:
    found = Cpu(lambda path: FILES.get(path, ""), frozenset({0, 1})).now()
    assert found is not None
    assert (found.idle, found.stolen, found.queued, found.running) == (11.0, 0.1, 2.5, 3)
    assert Cpu(lambda path: "", frozenset({0, 1})).now() is None
    without = Cpu(lambda path: STAT if "stat" in path else "", frozenset({0})).now()
    assert without is not None and without.queued is None


@pytest.mark.parametrize(
    ("idle", "stolen", "own", "threads", "share"),
    [
        (0.0, 0.0, 2.0, 2, 0.0),  # all of it was ours
        (1.0, 0.0, 1.0, 2, 0.0),  # a core was idle
        (0.0, 0.0, 1.0, 2, 0.5),  # another process had a core
        (0.0, 0.0, 1.5, 2, 0.25),  # and half of one
        (0.0, 0.0, 1.0, 1, 0.0),  # one core is enough
        (0.0, 0.0, 0.5, 1, 0.5),
        (0.0, 1.0, 2.0, 2, 0.5),  # a system that counts stolen time as ours, too
        (2.0, 0.0, 0.3, 2, 0.0),  # clocks that do not add up
        (0.0, 0.0, 0.0, 2, 1.0),
    ],
)
def test_what_others_had_of_the_cores_that_are_needed(
    idle: float, stolen: float, own: float, threads: int, share: float
) -> None:
    found = taken(reading(5.0), reading(6.0, idle=idle, stolen=stolen, own=own), 2, threads)
    assert found == pytest.approx(share)


def test_shares_of_the_time() -> None:
    before, after = reading(5.0, queued=1.0), reading(7.0, queued=1.5, stolen=1.0)
    assert queued(before, after) == 0.25
    assert queued(reading(5.0), after) == 1.0
    assert stolen(before, after, 2) == 0.25
    assert taken(before, before, 2, 2) == stolen(before, before, 2) == 0.0
