"""Strassen's algorithm beside rows, columns and channels of other magnitudes, NaN and infinity."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from collage.backends.native_kernels.strassen_scales import balanced
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from tests.backends.native_checks import BACKEND, needs_native, run_variant, subgraphs_of
from tests.compile.backends.test_native_gemm import product_model
from tests.compile.backends.test_native_strassen import any_size
from tests.compile.backends.test_native_winograd import conv_model

pytestmark = needs_native

BOUND, WITH_OUTLIERS = 2e-6, 5e-5
"""Errors, of |A| |B|; the second where one element of a row is larger than all others together."""


def convolution(weights: np.ndarray, pixels: list[int], batch: int) -> Subgraph:
    """A convolution of single pixels, with (K, N) weights."""
    depth, columns = weights.shape
    proto = conv_model((depth, columns), pixels, [1, 1], batch=batch, bias=False)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights.T.reshape(columns, depth, 1, 1), "w"))
    return subgraphs_of(proto)[-1]


def results(weights: np.ndarray, rows: np.ndarray, threads: int = 2) -> list[np.ndarray]:
    """Of all variants: (batch, rows, K) times (K, N)."""
    batch, count, depth = rows.shape
    data = np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(batch, depth, count, 1)
    with any_size():
        subgraph = convolution(weights, [count, 1], batch)
        found = [
            v for v in BACKEND.variants(subgraph, BuildOptions(threads=threads)) if "strassen" in v.split
        ]
        assert len(found) >= 2
        outputs = [run_variant(subgraph, variant, threads, [data])[0] for variant in found]
    return [each[..., 0].transpose(0, 2, 1) for each in outputs]


def numbers(depth: int, columns: int, *, rows: int = 21) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(depth)
    left, right = rng.standard_normal((3, rows, depth)), rng.standard_normal((depth, columns))
    return left.astype(np.float32), right.astype(np.float32)


def errors(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The largest of each element, of |A| |B|."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    sizes = np.abs(a) @ np.abs(b) + np.finfo(np.float32).tiny
    return np.max([np.abs(found - a @ b) / sizes for found in results(right, left)], axis=0)


SHAPES = (128, 64), (1088, 192)


@pytest.mark.parametrize(("depth", "columns"), SHAPES)
@pytest.mark.parametrize("scale", [1e4, 1e6, 1e-6, 1e30, 1e-30])
def test_rows_are_right_beside_one_of_another_magnitude(depth: int, columns: int, scale: float) -> None:
    left, right = numbers(depth, columns)
    left[1, 4] *= np.float32(scale)
    assert errors(left, right).max() < BOUND


@pytest.mark.parametrize(("depth", "columns"), SHAPES)
@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_items_of_a_batch_are_right_beside_one_of_another_magnitude(
    depth: int, columns: int, scale: float
) -> None:
    left, right = numbers(depth, columns)
    left[1] *= np.float32(scale)
    assert errors(left, right).max() < BOUND


def test_rows_of_all_magnitudes_and_zeros() -> None:
    left, right = numbers(128, 64, rows=84)
    left *= 10.0 ** np.linspace(-30, 34, 84)[:, None]
    left[0, 3] = 0
    left[1, 5:9] = 0
    left[2] = left[2, ::-1]
    assert errors(left.astype(np.float32), right).max() < BOUND


def test_the_largest_finite_rows_do_not_overflow_on_the_way() -> None:
    left, right = numbers(128, 64)
    left[0, 3], left[1] = np.float32(3.4e38), 0
    right *= np.float32(1e-8)
    assert errors(left, right).max() < BOUND


@pytest.mark.parametrize(("depth", "columns"), SHAPES)
def test_small_columns_are_right_beside_large_ones(depth: int, columns: int) -> None:
    left, right = numbers(depth, columns)
    right *= (10.0 ** np.random.default_rng(0).integers(-4, 5, columns)).astype(np.float32)
    assert errors(left, right).max() < BOUND


@pytest.mark.parametrize(("depth", "columns"), SHAPES)
def test_channels_of_all_magnitudes_with_weights_that_make_up_for_them(depth: int, columns: int) -> None:
    left, right = numbers(depth, columns)
    scale = (10.0 ** np.random.default_rng(0).integers(-4, 5, depth)).astype(np.float32)
    assert errors(left * scale, right / scale[:, None]).max() < BOUND


def test_weights_of_zeros() -> None:
    left, right = numbers(128, 64)
    left[:, :, 7] = 1e6
    right[7], right[:, 5] = 0, 0
    assert errors(left, right).max() < BOUND


@pytest.mark.parametrize(("depth", "columns"), SHAPES)
@pytest.mark.parametrize("scale", [1e4, 1e6])
def test_one_large_element_harms_only_its_row(depth: int, columns: int, scale: float) -> None:
    left, right = numbers(depth, columns)
    left[1, 4, 5] *= np.float32(scale)
    found = results(right, left)
    a, b = left.astype(np.float64), right.astype(np.float64)
    error = np.max([np.abs(each - a @ b) for each in found], axis=0) / (np.abs(a) @ np.abs(b))
    sizes = (np.abs(a) @ np.abs(b)).max(-1, keepdims=True)
    mine = np.max([np.abs(each - a @ b) for each in found], axis=0) / sizes
    assert mine[1, 4].max() < WITH_OUTLIERS
    error[1, 4] = 0
    assert error.max() < BOUND


@pytest.mark.parametrize(("depth", "columns"), SHAPES)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row(depth: int, columns: int, odd: float) -> None:
    left, right = numbers(depth, columns)
    clean = (np.abs(left.astype(np.float64)) @ np.abs(right), left.astype(np.float64) @ right)
    for row, place in ((3, 5), (20, -1)):
        left[1, row, place] = odd
    for found in results(right, left):
        assert np.isnan(found[1, [3, 20]]).all()
        others = np.ones(found.shape[:2], bool)
        others[1, [3, 20]] = False
        assert (np.abs(found - clean[1]) / clean[0])[others].max() < BOUND


def test_rows_of_a_matrix_are_right_beside_a_large_one() -> None:
    proto: onnx.ModelProto = product_model([140, 768], 192, bias=False, then=())
    chain = subgraphs_of(proto)[-1]
    weights = next(numpy_helper.to_array(t) for t in proto.graph.initializer if t.dims == [768, 192])
    left = np.random.default_rng(0).standard_normal((140, 768)).astype(np.float32)
    left[100] *= 1e6
    wanted, sizes = left.astype(np.float64) @ weights, np.abs(left).astype(np.float64) @ np.abs(weights)
    variants = [v for v in BACKEND.variants(chain, BuildOptions(threads=2)) if "strassen" in v.split]
    assert variants
    for variant in variants:
        (found,) = run_variant(chain, variant, 2, [left])
        assert (np.abs(found - wanted) / sizes).max() < BOUND


def test_balancing_is_exact() -> None:
    rng = np.random.default_rng(0)
    for spread in (0, 4):  # of the rows
        scale = 10.0 ** rng.integers(-spread, spread + 1, (64, 1))
        weights = (rng.standard_normal((64, 32)) * scale * 10.0 ** rng.integers(-6, 7, 32)).astype(np.float32)
        weights[3], weights[:, 7] = 0, 0
        found = balanced(weights)
        depth = np.ones(64, np.float32) if found.depth is None else found.depth
        np.testing.assert_array_equal(depth[:, None] * found.weights * found.columns, weights)
        used = np.abs(np.delete(np.delete(found.weights, 7, 1), 3, 0))
        assert used.max(0).max() <= 8 * used.max(0).min()
        assert used.max(1).max() <= 8 * used.max(1).min()
