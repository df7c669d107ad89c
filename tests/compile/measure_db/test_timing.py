"""Timing on synthetic clocks: the statistics, when it stops, and what is called how often."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.kernel.kernel import Call
from collage.measure.timing.calls import Enough, median_interval, noise, sample_calls, summary, undisturbed
from collage.measure.timing.switch_cost import switch_cost_us
from collage.measure_db.results import Timing
from tests.helpers.measure_db.fake_clock import FakeClock


def time_calls(calls: Sequence[Call], **options: Any) -> Timing:
    return summary(sample_calls(calls, **options))


@pytest.mark.parametrize("us", [0.05, 0.7, 19.0, 250.0, 40_000.0])
def test_a_steady_kernel_takes_what_it_takes(us: float) -> None:
    clock = FakeClock()
    timing = time_calls([clock.kernel(us)], clock=clock)
    assert timing.median_us == pytest.approx(us, rel=0.005)
    assert timing.noise_us <= 0.01 * us
    assert timing.repeats >= 7


def test_a_slow_kernel_runs_three_times() -> None:
    clock = FakeClock()
    kernel = clock.kernel(2e6)
    timing = time_calls([kernel], clock=clock)
    assert kernel.calls == 3
    assert timing.median_us == pytest.approx(2e6)
    assert timing.repeats == 3


def test_stops_at_the_limit_when_noise_never_settles() -> None:
    clock = FakeClock()
    rng = random.Random(0)
    timing = time_calls([clock.kernel(lambda: rng.choice([50.0, 500.0]))], limit_s=0.05, clock=clock)
    assert clock.now < 0.06e9
    assert timing.noise_us > 1.0


def test_a_kernel_of_a_large_network_takes_fewer_samples() -> None:
    def sampled(us: float) -> Timing:
        clock, rng = FakeClock(), random.Random(0)
        kernel = clock.kernel(lambda: 25 * rng.lognormvariate(0, 0.5))
        return time_calls([kernel], limit_s=1.0, enough=Enough(us), clock=clock)

    precise, usual, least = sampled(0.0), sampled(1.0), sampled(1000.0)
    assert precise.noise_us <= 0.02 * precise.median_us
    assert usual.noise_us <= 1.0
    assert least.noise_us <= 0.1 * least.median_us
    assert precise.repeats > usual.repeats >= least.repeats


@pytest.mark.parametrize("us", [0.5, 15.0, 100.0])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_instances_are_called_in_turn_and_equally_often(us: float, count: int) -> None:
    clock = FakeClock()
    order: list[int] = []

    def instance(number: int) -> Callable[[], None]:
        kernel = clock.kernel(us)

        def call() -> None:
            order.append(number)
            kernel()

        return call

    time_calls([instance(number) for number in range(count)], limit_s=0.02, clock=clock)
    calls = [order.count(number) for number in range(count)]
    assert max(calls) - min(calls) <= 3 + 0.05 * max(calls)
    repeated = sum(a == b for a, b in pairwise(order))
    assert count == 1 or repeated <= 1 + 0.05 * len(order)


def test_what_a_kernel_raises_comes_through_with_the_collector_on_again() -> None:
    def fails() -> None:
        assert not gc.isenabled()
        raise RuntimeError("kernel")

    with pytest.raises(RuntimeError, match="kernel"):
        time_calls([fails])
    assert gc.isenabled()


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=200))
def test_interval_holds_the_median(samples: list[float]) -> None:
    low, middle, high = median_interval(samples)
    assert min(samples) <= low <= middle <= high <= max(samples)
    assert middle == pytest.approx(median(samples))


@pytest.mark.parametrize("count", [7, 20, 99, 101, 400])
def test_interval_covers_the_true_median_95_times_in_100(count: int) -> None:
    rng = random.Random(count)
    hits = 0
    for _ in range(1500):
        low, _, high = median_interval([rng.expovariate(1.0) for _ in range(count)])
        hits += low <= 0.6931 <= high
    assert hits / 1500 >= 0.94


def test_drift_counts_as_noise() -> None:
    rng = random.Random(0)
    steady = [rng.gauss(100, 1) for _ in range(2000)]
    drifting = [sample + (10 if 400 <= at < 1100 else 0) for at, sample in enumerate(steady)]
    assert noise(steady) < 0.2
    low, _, high = median_interval(drifting)
    assert (high - low) / 2 < 0.5, "as if all samples were independent"
    assert noise(drifting) > 4


def test_the_shortest_tenth_is_what_others_did_not_disturb() -> None:
    samples = [900.0, 100.0, 800.0, 101.0, 700.0, 600.0, 650.0, 102.0, 640.0, 720.0] * 3
    assert undisturbed(samples) == [100.0, 101.0] * 3
    assert undisturbed([5.0, 4.0]) == [4.0]
    assert summary(undisturbed(samples)).median_us == pytest.approx(0.1005)


def test_switching_cost_is_what_alternation_adds() -> None:
    # Two kernels that are slow when the other one ran before, as libraries with spinning threads are.
    last = [""]

    def kernel(name: str) -> Callable[[], None]:
        def call() -> None:
            count = 400 if last[0] == name else 1600
            last[0] = name
            sum(range(count))

        return call

    assert switch_cost_us([kernel("a"), kernel("b")], limit_s=0.05) > 3
