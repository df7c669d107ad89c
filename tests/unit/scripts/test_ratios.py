"""Verdicts of ``scripts/bench cpu``: medians over restarts, their bootstrap intervals, and limits."""

from __future__ import annotations

import pytest

from scripts.lib.bench.ratios import ALONE, BESIDE_BUSY, Ratios

FIVE = Ratios([1.02, 0.97, 1.00, 1.01, 0.99])
FIFTEEN = Ratios([0.90, *(0.95 + 0.01 * n for n in range(13)), 1.30])


def test_the_interval_of_five_restarts_spans_all_of_them() -> None:
    """The median of a resample is the least value with a probability of 0.058."""
    assert FIVE.median == 1.00
    assert FIVE.interval == (0.97, 1.02)
    assert not FIVE.wide


def test_the_interval_of_more_restarts_is_narrower_and_ignores_outliers() -> None:
    assert FIFTEEN.median == pytest.approx(1.01)
    assert FIFTEEN.interval == pytest.approx((0.98, 1.04))
    assert not FIFTEEN.wide and Ratios([0.9, 1.0, 1.1]).wide


def test_one_restart_has_an_interval_without_extent() -> None:
    assert Ratios([0.99]).interval == (0.99, 0.99)
    assert Ratios([0.99]).to_json() == {"median": 0.99, "low": 0.99, "high": 0.99, "restarts": [0.99]}


@pytest.mark.parametrize(
    ("values", "alone", "beside"),
    [
        ([0.94, 0.945, 1.2], True, False),  # the median is too low, or not
        ([0.955, 0.96, 0.979], True, False),  # the interval ends too low, or not
        ([0.951, 0.96, 0.981], False, False),
        ([0.90, 0.92, 1.1], True, True),
    ],
)
def test_limits(values: list[float], alone: bool, beside: bool) -> None:
    assert (Ratios(values).below(ALONE), Ratios(values).below(BESIDE_BUSY)) == (alone, beside)
