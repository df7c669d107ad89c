"""Statistics of samples: medians, their intervals, and how precise is enough."""

from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.measure.timing.calls import Enough, median_interval, noise


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


def test_a_kernel_of_a_large_network_need_not_be_known_as_precisely() -> None:
    assert Enough().noise_ns(1000.0) == 20.0
    assert Enough(us=0.05).noise_ns(1000.0) == 50.0
    assert Enough(us=10.0).noise_ns(1000.0) == 100.0
