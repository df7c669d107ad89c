"""The numerics gate and the buffers around it."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from collage.check.compare import Expected, Rule, difference, dtypes_of, region_tolerance, relative_error
from collage.graph.storage import BLOCKED, CHANNELS_LAST, PLAIN, Storage, to_layout
from collage.kernel.buffers import aligned_empty, as_bytes, poison

F = np.float32


def test_error_is_relative_to_the_largest_value() -> None:
    expected = np.array([100, 1e-6], F)
    assert relative_error(np.array([100, 1e-3], F), expected) == pytest.approx(1e-5, rel=0.01)
    assert relative_error(expected.copy(), expected) == 0


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_odd_values_must_agree(odd: float) -> None:
    expected = np.array([1, odd, 2], F)
    assert relative_error(expected.copy(), expected) == 0
    assert relative_error(np.array([1, 2, odd], F), expected) == math.inf
    assert relative_error(np.array([1, 2, 2], F), expected) == math.inf
    assert relative_error(np.array([1, -odd, 2], F), expected) == (0 if np.isnan(odd) else math.inf)
    assert relative_error(np.array([odd], F), np.array([odd], F)) == 0


def test_integers_and_booleans_are_exact() -> None:
    assert relative_error(np.array([1, 2]), np.array([1, 2])) == 0
    assert relative_error(np.array([1, 1_000_001]), np.array([1, 1_000_000])) == math.inf
    assert relative_error(np.array([True]), np.array([False])) == math.inf


def test_shape_and_dtype_must_agree() -> None:
    assert relative_error(np.zeros((2, 1), F), np.zeros(2, F)) == math.inf
    assert relative_error(np.zeros(2, F), np.zeros(2, np.float64)) == math.inf
    assert relative_error(np.zeros((0, 3), F), np.zeros((0, 3), F)) == 0


def test_small_floats() -> None:
    expected = np.array([1, 2], ml_dtypes.bfloat16)
    assert relative_error(np.array([1, 2.015625], ml_dtypes.bfloat16), expected) == pytest.approx(0.0078, rel=0.01)
    big = np.array([60000, -60000], np.float16)
    assert relative_error(-big, big) == 2  # and not the infinity that float16 would give


def test_quantised_values_may_be_a_step_off() -> None:
    expected = np.array([0, 100, 255], np.uint8)
    step, far = np.array([0, 101, 255], np.uint8), np.array([0, 120, 255], np.uint8)
    allowed = region_tolerance(["uint8", "float32"], rounded=True)
    assert relative_error(step, expected) == math.inf
    assert relative_error(step, expected, rounded=True) == pytest.approx(1 / 255)
    assert relative_error(step, expected, rounded=True) <= allowed
    assert relative_error(far, expected, rounded=True) > allowed
    assert relative_error(step.astype(np.int16), expected.astype(np.int16), rounded=True) <= allowed
    assert relative_error(step.astype(np.int64), expected.astype(np.int64), rounded=True) == math.inf
    assert relative_error(np.array([-128], np.int8), np.array([127], np.int8), rounded=True) > 2


def test_poison_shows_in_every_dtype() -> None:
    for dtype in ("int8", "uint8", "int64", "uint16"):
        array = aligned_empty((4,), dtype)
        poison(array)
        assert (as_bytes(array) == 0xA5).all()
    flags = aligned_empty((3,), "bool")
    poison(flags)
    assert flags.tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_denormals_may_be_taken_for_zero(dtype: type) -> None:
    denormals = np.full((3, 16), np.finfo(dtype).tiny / 100, dtype)
    assert relative_error(denormals, denormals) == 0
    assert relative_error(np.zeros_like(denormals), denormals) < 1e-5
    assert relative_error(np.full_like(denormals, 1e-20), denormals) > 1


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 1, 1), (2, 1, 1), (1, 3, 2)])
@pytest.mark.parametrize("layout", [CHANNELS_LAST, BLOCKED])
def test_outputs_of_any_size_are_compared_in_any_layout(shape: tuple[int, ...], layout: Storage) -> None:
    array = np.full(shape, 2.0, np.float32)
    expected = Expected.of(array, layout=layout)
    assert expected.error(to_layout(array, layout)) == 0
    assert expected.error(to_layout(array * np.float32(1.5), layout)) == pytest.approx(0.5)


@pytest.mark.parametrize("layout", [PLAIN, BLOCKED, CHANNELS_LAST])
def test_normal_noise_is_told_by_its_largest_element(layout: Storage) -> None:
    rng = np.random.default_rng(3)
    wanted = (rng.standard_normal((2, 24, 9, 9)) * np.geomspace(0.1, 10, 24)[:, None, None]).astype(np.float32)
    scale = np.abs(wanted).max(axis=(2, 3), keepdims=True)
    drawn = rng.standard_normal(wanted.shape)
    actual = (wanted + 1e-3 * scale * drawn / np.abs(drawn).max()).astype(np.float32)
    expected = Expected.of(wanted, Rule(channels_first=True), layout=layout)
    stored = to_layout(actual, layout)
    assert expected.error(stored) == pytest.approx(1e-3, rel=1e-3)
    assert expected.as_noise(stored) == pytest.approx(1e-3, rel=0.15)


def test_an_element_of_next_to_no_scale_makes_no_large_noise() -> None:
    """A channel that is almost nothing after a relu is off by as much as the others, and by far more in its scale."""
    rng = np.random.default_rng(4)
    wanted = np.abs(rng.standard_normal((1, 32, 8, 8))).astype(np.float32)
    wanted[:, 5] *= 2e-3
    actual = wanted + np.float32(1e-3) * rng.standard_normal(wanted.shape).astype(np.float32)
    expected = Expected.of(wanted, Rule(channels_first=True))
    assert expected.error(actual) > 0.3
    assert 5e-4 < expected.as_noise(actual) < 5e-3


def test_maps_from_classes_to_floats_are_rows() -> None:
    """As ONNX's ZipMap gives them, whose sums differ in their last bits from engine to engine."""
    one, near = (
        [{"cat": 0.25, "dog": 0.75}, {"cat": 1.0, "dog": 0.0}],
        [{"cat": 0.25, "dog": 0.75}, {"cat": 1.0, "dog": 1e-7}],
    )
    assert difference([near], [one])[1] == pytest.approx(1e-7)
    assert difference([one], [one]) == (0.0, 0.0)
    for other in (one[:1], [{"cat": 0.25, "emu": 0.75}, one[1]], [{"dog": 0.75, "cat": 0.25}] * 2, [one[0], 1.0]):
        assert difference([other], [one])[1] == math.inf
    assert difference([[{"cat": 1}]], [[{"cat": 2}]])[1] == math.inf
    assert dtypes_of([one]) == ["float32", "float32"]
