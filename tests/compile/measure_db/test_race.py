"""A race against the fastest kernel so far: who is let go, after how many samples, and with which lower bound."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from collage.measure.timing.race import race
from collage.measure_db.results import Slower

MS = 1e6


def counted(*samples: float, then: float) -> tuple[Iterator[float], list[float]]:
    """Samples in nanoseconds without end, and those that were taken."""
    taken: list[float] = []

    def samples_ns() -> Iterator[float]:
        for each in samples:
            taken.append(each)
            yield each
        while True:
            taken.append(then)
            yield then

    return samples_ns(), taken


def test_what_is_slower_by_far_is_let_go_after_few_samples() -> None:
    samples, taken = counted(then=4 * MS)
    slower = race(samples, 2000.0)
    assert slower is not None
    assert (slower.least_us, slower.rival_us, slower.repeats) == (4000.0, 2000.0, 3)
    assert len(taken) == 3
    assert str(slower) == "at least 100 % slower than another kernel of the same operators"
    for least_us in (99.6, 100.0, 100.4):
        assert str(Slower(least_us, 100.0, 5)) == "not faster than another kernel of the same operators"


def test_what_is_a_little_slower_needs_more_samples() -> None:
    samples, taken = counted(then=2.2 * MS)
    slower = race(samples, 2000.0)
    assert slower is not None
    assert slower.repeats == len(taken) == 12


def test_one_burst_of_noise_decides_nothing() -> None:
    """Short calls are sampled for some milliseconds, and the shortest sample is the bound."""
    samples, taken = counted(*[30e3] * 100, 10.5e3, then=10.5e3)
    slower = race(samples, 10.0)
    assert slower is not None
    assert slower.least_us == 10.5
    assert len(taken) > 100


def test_what_may_be_faster_is_not_let_go() -> None:
    samples, taken = counted(3 * MS, 1.8 * MS, then=3 * MS)
    assert race(samples, 2000.0) is None
    assert len(taken) == 2
    samples, taken = counted(then=1.99 * MS)
    assert race(samples, 2000.0) is None
    assert len(taken) == 12


@given(st.lists(st.floats(1e5, 1e8), min_size=40, max_size=40), st.floats(100.0, 1e5))
def test_the_bound_is_never_above_a_sample(samples: list[float], rival_us: float) -> None:
    slower = race(iter(samples), rival_us)
    if slower is not None:
        seen = samples[: slower.repeats]
        assert slower.least_us == min(seen) / 1e3
        assert sorted(seen)[len(seen) // 2] >= rival_us * 1e3


def test_on_a_busy_machine_the_shortest_of_more_samples_decides() -> None:
    """Others have a core most of the time: the median says that it is slower, and the shortest that it is not."""
    disturbed = [4.0 * MS] * 3 + [1.97 * MS] + [4.0 * MS] * 10
    samples, _ = counted(*disturbed, then=4.0 * MS)
    assert race(samples, 2000.0) is not None
    samples, taken = counted(*disturbed, then=4.0 * MS)
    assert race(samples, 2000.0, patience=4.0) is None
    assert len(taken) == 12
    samples, _ = counted(then=2.1 * MS)
    slower = race(samples, 2000.0, patience=2.5)
    assert slower is not None and slower.least_us == 2100.0
