"""Metrics of the error of outputs, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from collage.check.metrics import Metric, MetricError, check_tolerance, metric_of
from collage.errors import UsageError


def test_top1_is_the_share_of_decisions_that_differ() -> None:
    reference = {"y": np.array([[0.1, 0.9], [0.8, 0.2]], np.float32), "n": np.array([3, 4])}
    outputs = {"y": np.array([[0.9, 0.1], [0.7, 0.3]], np.float32), "n": np.array([3, 4])}
    metric = metric_of("top1")
    assert metric.measured(reference, reference) == 0
    assert metric.measured(reference, outputs) == 0.25
    assert metric.of_all([0.25, 0.0]) == 0.125
    assert metric.needs_samples


def test_cosine_is_0_in_the_same_direction_and_2_in_the_opposite_one() -> None:
    metric, reference = metric_of("cosine"), {"y": np.array([3.0, 4.0])}
    assert metric.measured(reference, {"y": np.array([3.0, 4.0])}) == 0
    assert metric.measured(reference, {"y": np.array([6.0, 8.0])}) == pytest.approx(0)
    assert metric.measured(reference, {"y": np.array([-3.0, -4.0])}) == pytest.approx(2)
    assert metric.measured(reference, {"y": np.array([math.nan, 4.0])}) == math.inf
    assert metric.of_all([0.25, 0.0]) == 0.25
    assert not metric.needs_samples


def test_output_has_one_scale_for_all_of_an_output() -> None:
    metric = metric_of("output")
    reference = {"y": np.array([[400.0, 0.5], [-800.0, 0.1]], np.float32), "z": np.array([0.5], np.float32)}
    near = {"y": np.array([[400.0, 4.5], [-800.0, 0.1]], np.float32), "z": np.array([0.5], np.float32)}
    assert metric.measured(reference, reference) == 0
    assert metric.measured(reference, near) == 4 / 800
    assert metric.measured(reference, {**near, "z": np.array([0.25], np.float32)}) == 0.5
    assert not metric.needs_samples and not metric.is_max


@pytest.mark.parametrize(
    ("reference", "actual", "error"),
    [
        ([0.0, 0.0], [0.0, 0.25], 0.25),
        ([math.inf, 2.0], [math.inf, 1.0], 0.5),
        ([math.inf, 2.0], [3e38, 2.0], math.inf),
        ([math.nan, 2.0], [math.nan, 2.0], 0.0),
        ([1.0, 2.0], [math.nan, 2.0], math.inf),
    ],
)
def test_output_compares_what_is_out_of_the_ordinary(reference: list[float], actual: list[float], error: float) -> None:
    found = metric_of("output").measured({"y": np.array(reference)}, {"y": np.array(actual)})
    assert found == error


def test_output_wants_equal_integers() -> None:
    reference = {"y": np.array([3, 4])}
    assert metric_of("output").measured(reference, {"y": np.array([3, 4])}) == 0
    assert metric_of("output").measured(reference, {"y": np.array([3, 5])}) == math.inf


def test_a_function_is_a_metric() -> None:
    def first(reference: Any, outputs: Any) -> Any:
        return abs(outputs["y"][0] - reference["y"][0])

    metric = metric_of(first)
    assert (metric.name, metric.needs_samples, metric.is_max) == ("first", True, False)
    assert metric.measured({"y": np.array([1.0])}, {"y": np.array([3.0])}) == 2.0
    with pytest.raises(MetricError, match=r"^the metric first raised KeyError: 'y'$"):
        metric.measured({"y": np.array([1.0])}, {})
    with pytest.raises(MetricError, match=r"^the metric first returned NaN$"):
        metric.measured({"y": np.array([math.nan])}, {"y": np.array([1.0])})
    with pytest.raises(MetricError, match="raised TypeError"):
        metric_of(lambda *_: None).measured({}, {})


@pytest.mark.parametrize("errors", [(), (0.0,), (1e-3, 2e-3), (0.0,) * 12, (1e-3, math.inf, 1e-3, 1e-3)])
def test_where_nothing_is_known_of_the_spread_the_largest_error_counts(errors: tuple[float, ...]) -> None:
    assert Metric("output").foreseen(errors) == max(errors, default=0.0)


def test_a_bound_is_as_far_above_the_samples_as_they_are_apart() -> None:
    alike, apart = np.geomspace(3.9e-3, 4.9e-3, 12), np.geomspace(1e-5, 5e-3, 12)
    assert Metric().foreseen((2e-3,) * 12) == pytest.approx(2e-3)
    assert 1.0 <= Metric().foreseen(alike.tolist()) / 4.9e-3 < 1.3
    assert Metric().foreseen(apart.tolist()) / 5e-3 > 3
    assert Metric("top1").foreseen((0.0, 0.0, 0.0, 0.5)) == 0.125


@pytest.mark.parametrize("kind", ["half-normal", "log-normal", "both"])
@pytest.mark.parametrize("count", [4, 12, 40])
def test_all_of_20_other_inputs_are_within_the_bound(kind: str, count: int) -> None:
    rng = np.random.default_rng(count)
    half, logs = (rng.standard_normal((400, count + 20)) for _ in range(2))
    errors = {
        "half-normal": np.abs(half),
        "log-normal": np.exp(0.5 * logs),
        "both": np.abs(half) * np.exp(0.5 * logs),
    }[kind]
    bounds = [Metric().foreseen(each[20:].tolist()) for each in errors]
    assert np.mean(errors[:, :20].max(axis=1) <= bounds) > 0.88
    if count == 12:
        assert np.median(bounds / errors[:, 20:].max(axis=1)) < 4


def test_what_is_no_metric_or_tolerance_is_refused() -> None:
    assert metric_of(None) == metric_of("max") == Metric()
    with pytest.raises(UsageError, match=r"unknown metric: mse\. Valid: cosine, max, output, top1\."):
        metric_of("mse")
    assert check_tolerance("1e-2") == 0.01
    for wrong in (-1e-3, math.nan, math.inf):
        with pytest.raises(UsageError, match="must be 0 or more"):
            check_tolerance(wrong)
    with pytest.raises(UsageError, match=r"tolerance is a number such as 1e-2, not 'small'\."):
        check_tolerance("small")
