"""Errors of outputs on samples: whose they are, and in which units they are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from collage.check.accuracy import MADE_UP, Accuracy, Asked
from collage.check.metrics import Metric
from collage.core.deadline import Deadline
from collage.frontend.model import import_model
from tests.helpers.models import elementwise_net


def accuracy(metric: Metric, samples: Sequence[dict[str, Any]] = ()) -> Accuracy:
    model = elementwise_net()
    return Accuracy.of(model, import_model(model), Asked(1e-2, metric, tuple(samples)), 0, Deadline())


def exact(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    (x,) = inputs
    return [(np.maximum(x, 0) + np.tanh(x) * 2).astype(np.float32)]


def test_made_up_inputs_differ_and_are_the_same_each_time() -> None:
    found, again = accuracy(Metric()), accuracy(Metric())
    assert len({each[0].tobytes() for each in found.inputs}) == MADE_UP
    assert (found.given, found.about) == (False, "12 made-up inputs")
    assert found.digest == again.digest
    assert found.digest != accuracy(Metric("cosine")).digest
    assert found.error(exact) < 1e-5


def test_the_error_is_the_largest_difference_over_the_scale_of_any_sample() -> None:
    samples = [{"x": np.full((4, 64), fill, np.float32)} for fill in (0.5, 3.0)]
    found = accuracy(Metric(), samples)
    assert (found.given, found.about) == (True, "2 samples that were given")
    assert [each[0][0, 0] for each in found.inputs] == [0.5, 3.0]

    def off(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        (y,) = exact(inputs)
        if inputs[0][0, 0] == 3.0:
            y[2, 5] *= 1.125
        return [y]

    assert found.error(off) == pytest.approx(0.125, rel=1e-5)
    assert found.error(lambda inputs: [exact(inputs)[0].astype(np.float64)]) == math.inf


def test_a_function_of_the_users_gets_outputs_by_name() -> None:
    def worst(reference: Any, outputs: Any) -> float:
        assert list(reference) == list(outputs) == ["y"]
        return float(np.abs(outputs["y"] - reference["y"]).max())

    found = accuracy(Metric("worst", worst), [{"x": np.ones((4, 64), np.float32)}])
    assert found.digest is None
    assert found.error(lambda inputs: [exact(inputs)[0] + np.float32(2)]) == pytest.approx(2.0)
