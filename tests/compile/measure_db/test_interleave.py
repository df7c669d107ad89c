"""Whole networks against each other, on a clock of our own: turns, when it ends, and drift that both feel."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from collage.measure.timing.interleave import (
    FEWEST,
    SURE,
    Pace,
    Turn,
    at_worst,
    may_be_best,
    paired,
    race_by_turns,
    take_turn,
)
from collage.measure_db.results import Timing
from tests.helpers.measure_db.fake_clock import FakeClock


def steady(us: float) -> Turn:
    return lambda: [1e3 * us] * 3


def rounds(pace: Pace, *us: float) -> list[int]:
    """The rounds that networks of these times get."""
    order: list[int] = []

    def turn(number: int, us: float) -> Callable[[], Sequence[float]]:
        def take() -> Sequence[float]:
            order.append(number)
            return [1e3 * us]

        return take

    race_by_turns({str(n): turn(n, each) for n, each in enumerate(us)}, pace, lambda: 0.0)
    return [order.count(number) for number in range(len(us))]


def test_rounds_rotate() -> None:
    order: list[str] = []
    times = {"a": 100.0, "b": 101.0, "c": 102.0}

    def turn(name: str) -> Callable[[], Sequence[float]]:
        def take() -> Sequence[float]:
            order.append(name)
            return [1e3 * times[name]]

        return take

    found = race_by_turns({name: turn(name) for name in times}, Pace(6), lambda: 0.0)
    assert {name: timing.median_us for name, timing in found.items()} == pytest.approx(times)
    assert order[:9] == list("abc" + "bca" + "cab")


def test_a_race_ends_as_soon_as_its_pace_and_the_noise_let_it() -> None:
    assert rounds(Pace(), 100, 200, 200) == [3, 3, 3]
    assert rounds(Pace(least=SURE), 100, 200, 200) == [8, 3, 3]
    assert rounds(Pace(), 100, 105) == [8, 8]
    assert rounds(Pace(), 100, 100) == [8, 8]
    assert rounds(Pace(FEWEST, FEWEST), 100) == [3]
    assert rounds(Pace(5), 100, 101) == [5, 5]
    seconds = iter(range(100))
    late = race_by_turns({"a": steady(1), "b": steady(1)}, Pace(limit_s=1.0), lambda: float(next(seconds)))
    assert late["a"].repeats == 3 * FEWEST


def test_a_turn_pauses_warms_up_and_times_as_many_calls() -> None:
    clock = FakeClock(reading_ns=0)
    kernel = clock.kernel(1000.0)
    assert take_turn(kernel, 0.0, 0.0101, clock) == pytest.approx([1e6] * 11, rel=1e-3)
    assert kernel.calls == 22
    assert len(take_turn(clock.kernel(1000.0), 0.0, 0.0, clock)) == 1


def drifting(seed: int, us: dict[str, float]) -> dict[str, Turn]:
    """Networks on a machine whose speed changes by up to a half from round to round, with 0.3 % noise of their own."""
    rng = random.Random(seed)
    speeds = [rng.uniform(1.0, 1.5) for _ in range(100)]
    taken = dict.fromkeys(us, 0)

    def turn(name: str) -> Callable[[], Sequence[float]]:
        def take() -> Sequence[float]:
            taken[name] += 1
            return [1e3 * us[name] * speeds[taken[name]] * rng.uniform(0.997, 1.003) for _ in range(5)]

        return take

    return {name: turn(name) for name in us}


@pytest.mark.parametrize("seed", range(5))
def test_a_drift_that_all_feel_does_not_hide_who_is_faster(seed: int) -> None:
    found = race_by_turns(drifting(seed, {"a": 51.0, "b": 50.0, "c": 90.0}), Pace(40), lambda: 0.0)
    assert min(found, key=lambda name: found[name].median_us) == "b"
    assert not may_be_best(found["a"], found)
    assert found["a"].median_us == pytest.approx(1.02 * found["b"].median_us, rel=0.005)
    assert found["c"].repeats == 5 * FEWEST


@pytest.mark.parametrize("seed", range(5))
def test_who_is_as_fast_may_be_the_best(seed: int) -> None:
    found = race_by_turns(drifting(seed, {"a": 50.0, "b": 50.0}), Pace(40), lambda: 0.0)
    assert all(may_be_best(each, found) for each in found.values())


def test_who_was_let_go_in_fast_rounds_does_not_win_in_the_end() -> None:
    # Three rounds at full speed, then slow ones: b has a lower median of its own than a, which is twice as fast.
    turns = {"a": [[1e6]] * 3 + [[3e6]] * 5, "b": [[2e6]] * 3}
    found = paired(turns)
    assert (found["a"].median_us, found["b"].median_us) == (3000, 6000)
    assert (found["a"].repeats, found["b"].repeats) == (8, 3)


def test_of_two_races_the_worse_place_counts() -> None:
    def timings(**us: float) -> dict[str, Timing]:
        return {name: Timing(each, 0.0, each, each, 1) for name, each in us.items()}

    one, other = timings(a=10.0, b=12.0, c=40.0), timings(a=6.0, b=2.0, c=2.0, d=1.0)
    assert {name: each.median_us for name, each in at_worst(one, other).items()} == {"a": 30.0, "b": 12.0, "c": 40.0}
    assert at_worst(one, {}) == one
