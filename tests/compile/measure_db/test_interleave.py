"""Whole networks against each other, on a clock of our own: turns, when it ends, and drift that both feel."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from collage.measure.timing.interleave import (
    Decision,
    Pace,
    apart,
    may_be_best,
    paired,
    take_turns,
)
from collage.measure_db.results import Timing
from tests.helpers.measure_db.fake_clock import FakeClock


def raced(*about: Any, clock: FakeClock) -> dict[str, Timing]:
    return paired(take_turns(*about, clock=clock))


def test_interleaved_rounds_rotate() -> None:
    clock = FakeClock()
    order: list[str] = []

    def candidate(name: str, us: float) -> Callable[[], None]:
        kernel = clock.kernel(us)

        def call() -> None:
            order.append(name)
            kernel()

        return call

    times = {"a": 100, "b": 200, "c": 300}
    found = raced({name: candidate(name, us) for name, us in times.items()}, Pace(6), clock=clock)
    assert {name: timing.median_us for name, timing in found.items()} == pytest.approx(times)
    assert all(timing.repeats == 6 for timing in found.values())
    # Twice each turn, the first time untimed; each round begins with the next.
    assert order[:12] == list("aabbcc" + "bbccaa")


def test_interleaving_ends_early_only_when_one_is_fastest_beyond_the_noise() -> None:
    clock = FakeClock()
    clear = {"a": clock.kernel(100), "b": clock.kernel(200), "c": clock.kernel(200)}
    found = raced(clear, Pace(), Decision(), clock=clock)
    assert [found[name].repeats for name in "abc"] == [8, 3, 3]
    found = raced(clear, Pace(), Decision(least=3), clock=clock)
    assert [found[name].repeats for name in "abc"] == [3, 3, 3]
    close = {"a": clock.kernel(100), "b": clock.kernel(105)}
    found = raced(close, Pace(), Decision(), clock=clock)
    assert [found[name].repeats for name in "ab"] == [8, 8]
    equal = {"a": clock.kernel(100), "b": clock.kernel(100)}
    assert raced(equal, Pace(), Decision(), clock=clock)["a"].repeats == 8


def test_differences_of_no_interest_are_not_told_apart() -> None:
    def repeats(alike_us: float) -> int:
        rng, clock = random.Random(1), FakeClock()
        calls = {name: clock.kernel(lambda: 1000 * rng.uniform(0.95, 1.05)) for name in "ab"}
        return raced(calls, Pace(40, 1000.0), Decision(alike_us=alike_us), clock=clock)["a"].repeats

    assert repeats(0.0) > repeats(100.0) == 8


@pytest.mark.parametrize(("alike_us", "repeats"), [(0.0, 30), (4.0, 30), (6.0, 8)])
def test_on_a_busy_machine_only_differences_of_no_interest_end_it(alike_us: float, repeats: int) -> None:
    clock = FakeClock()
    calls = {"a": clock.kernel(100), "b": clock.kernel(105), "c": clock.kernel(102)}
    found = raced(calls, Pace(30, 1000.0), Decision(alike_us=alike_us, disturbed=True), clock=clock)
    assert [each.repeats for each in found.values()] == [repeats] * 3


def drifting(seed: int, us: dict[str, float]) -> tuple[FakeClock, dict[str, Callable[[], None]]]:
    """Kernels on a machine whose speed changes by up to a half from second to second, with 0.3 % noise of their own."""
    rng = random.Random(seed)
    clock = FakeClock()
    speeds = [rng.uniform(1.0, 1.5) for _ in range(10_000)]

    def kernel(us: float) -> Callable[[], float]:
        return lambda: us * speeds[int(clock.now / 1e9)] * rng.uniform(0.997, 1.003)

    return clock, {name: clock.kernel(kernel(each)) for name, each in us.items()}


@pytest.mark.parametrize("seed", range(5))
def test_a_drift_that_all_feel_does_not_hide_who_is_faster(seed: int) -> None:
    clock, calls = drifting(seed, {"a": 51_000, "b": 50_000, "c": 90_000})
    found = raced(calls, Pace(40, 1000.0), Decision(), clock=clock)
    assert min(found, key=lambda name: found[name].median_us) == "b"
    assert not may_be_best(found["a"], found)
    assert found["a"].median_us == pytest.approx(1.02 * found["b"].median_us, rel=0.005)
    assert found["c"].repeats < 8


@pytest.mark.parametrize("seed", range(5))
def test_who_is_as_fast_may_be_the_best(seed: int) -> None:
    clock, calls = drifting(seed, {"a": 50_000, "b": 50_000})
    found = raced(calls, Pace(40, 1000.0), Decision(), clock=clock)
    assert all(may_be_best(each, found) for each in found.values())


def test_who_was_let_go_in_fast_rounds_does_not_win_in_the_end() -> None:
    # Three rounds at full speed, then slow ones: b has a lower median of its own than a, which is twice as fast.
    turns = {"a": [[1e6]] * 3 + [[3e6]] * 5, "b": [[2e6]] * 3}
    found = paired(turns)
    assert (found["a"].median_us, found["b"].median_us) == (3000, 6000)
    assert (found["a"].repeats, found["b"].repeats) == (8, 3)


def test_on_a_busy_machine_the_undisturbed_calls_decide() -> None:
    """Others take a core in four of five stretches of 4 ms, which slows a network on one core only a little."""
    clock = FakeClock()
    rng = random.Random(7)

    def kernel(us: float, slowed: float) -> Callable[[], None]:
        def duration() -> float:
            disturbed = int(clock.now // 4e6) % 5 != 0
            return us * (slowed if disturbed else 1.0) * rng.uniform(1.0, 1.01)

        return clock.kernel(duration)

    calls = {"all cores": kernel(200.0, 2.0), "one core": kernel(260.0, 1.1)}
    turns = take_turns(calls, Pace(20, 10.0, turn_s=0.02), clock=clock)
    medians, found = paired(turns), apart(turns)
    assert medians["one core"].median_us < medians["all cores"].median_us
    assert found["all cores"].median_us == pytest.approx(200.0, rel=0.02)
    assert found["one core"].median_us == pytest.approx(260.0, rel=0.02)
    assert found["all cores"].repeats == sum(len(turn) for turn in turns["all cores"])
    assert may_be_best(found["all cores"], found) and not may_be_best(found["one core"], found)
