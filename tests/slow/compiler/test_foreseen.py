"""The error to expect of other inputs, by the spread of the samples' errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from collage.compiler.foreseen import foreseen
from collage.compiler.metrics import Metric


@pytest.mark.parametrize("errors", [(), (0.0,), (1e-3, 2e-3), (0.0,) * 12, (1e-3, math.inf, 1e-3, 1e-3)])
def test_where_nothing_is_known_of_the_spread_the_largest_error_counts(errors: tuple[float, ...]) -> None:
    assert foreseen(errors) == max(errors, default=0.0)


def test_equal_errors_are_foreseen_again() -> None:
    assert foreseen((2e-3,) * 12) == pytest.approx(2e-3)


def test_a_spread_leaves_room() -> None:
    alike, apart = np.geomspace(3.9e-3, 4.9e-3, 12), np.geomspace(1e-5, 5e-3, 12)
    assert 1.0 <= foreseen(alike.tolist()) / 4.9e-3 < 1.2
    assert foreseen(apart.tolist()) / 5e-3 > 5


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.5])
@pytest.mark.parametrize("count", [6, 12, 40])
def test_it_is_a_bound_for_995_of_1000(spread: float, count: int) -> None:
    rng = np.random.default_rng([count, int(10 * spread)])
    below, trials = 0, 4000
    for _ in range(trials):
        *samples, other = np.exp(spread * rng.standard_normal(count + 1)) * 1e-3
        below += other <= foreseen(samples)
    assert (0.985 if count < 40 else 0.99) < below / trials < 0.999


@pytest.mark.parametrize("count", [12, 40])
def test_errors_of_a_single_number_are_no_reason_for_much_room(count: int) -> None:
    """Half-normal errors, whose logarithms are spread far below: 99.5 % are below 2.8 standard deviations."""
    rng = np.random.default_rng(count)
    bounds = [foreseen(np.abs(rng.standard_normal(count)).tolist()) for _ in range(500)]
    others = np.abs(rng.standard_normal((500, 20))).max(axis=1)
    assert np.mean(others <= bounds) > 0.9
    assert 2.8 < np.median(bounds) < 6


def test_the_spread_of_other_plans_counts() -> None:
    """What is foreseen of a plan depends less on how its own few errors happen to be spread."""
    rng = np.random.default_rng(5)
    draws = np.abs(rng.standard_normal((400, 5, 12)))
    alone = [foreseen(plans[0].tolist()) for plans in draws]
    beside = [foreseen(plans[0].tolist(), plans[1:].tolist()) for plans in draws]
    assert np.std(np.log(beside)) < 0.75 * np.std(np.log(alone))
    others = np.abs(rng.standard_normal((400, 20))).max(axis=1)
    assert np.mean(others <= beside) > 0.9


def test_plans_that_say_nothing_of_the_spread_do_not_count() -> None:
    errors = np.geomspace(1e-3, 4e-3, 12).tolist()
    useless = [(0.0,) * 12, (math.inf, *errors[1:]), (1e-3,) * 4]
    assert foreseen(errors, useless) == foreseen(errors)


def test_an_error_of_zero_among_others_is_no_infinite_spread() -> None:
    assert math.isfinite(foreseen((0.0, *[1e-3] * 11)))


def test_shares_of_decisions_are_taken_as_they_are() -> None:
    errors = (0.0, 0.0, 0.0, 0.5)
    assert Metric("top1").foreseen(errors) == Metric("top1").of_all(errors) == 0.125
    assert Metric("output").foreseen(errors) > 0.5
