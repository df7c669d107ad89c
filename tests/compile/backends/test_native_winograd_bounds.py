"""The error of Winograd's algorithm beside outliers, and what it never mixes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from collage.backends.native_kernels import winograd
from collage.kernel.options import BuildOptions
from tests.compile.backends.test_native_winograd import conv_model, transposed_model
from tests.helpers.backends.native_checks import BACKEND, needs_native, run_variant, subgraphs_of
from tests.helpers.reference import evaluate

pytestmark = needs_native

BOUND = 1e-5
"""Error of each element, of what sum |w| max |x| makes with the largest |x| of each channel near the window."""

REACH = 5
"""Pixels to all sides that lie in one tile with a pixel, at most."""


@pytest.fixture(autouse=True)
def every_way() -> None:
    """Not only those that may be the fastest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "_SLOWER", 1e9)
        yield


def largest_near(x: np.ndarray, reach: Sequence[int]) -> np.ndarray:
    """|x| of (N, C, spatial...), the largest within so many elements along each spatial axis."""
    found = np.abs(x).astype(np.float64)
    for axis, wide in enumerate(reach, start=2):
        padded = np.pad(found, [(wide, wide) if i == axis else (0, 0) for i in range(x.ndim)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * wide + 1, axis)
        found = windows.max(-1)
    return found


def worst(proto: onnx.ModelProto, x: np.ndarray, reach: Sequence[int], *, transposed: bool = False) -> float:
    """The largest error of all variants and elements, as ``BOUND`` counts it; bias and residual are none."""
    subgraph = subgraphs_of(proto)[-1]
    (wanted,) = evaluate(subgraph, [x])
    weights = np.abs(next(numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == "w"))
    sums = weights.astype(np.float64).sum(tuple(range(2, weights.ndim)))
    near = largest_near(x, reach)
    if transposed:  # each output sees a quarter of the window
        sums, near = sums.T / 4, near.repeat(2, 2).repeat(2, 3)
    scale = np.einsum("oi,ni...->no...", sums, near)[tuple(map(slice, wanted.shape))]
    variants = [v for v in BACKEND.variants(subgraph, BuildOptions(threads=2)) if "winograd" in v.split]
    assert variants
    return max(float((np.abs(run_variant(subgraph, v, 2, [x])[0] - wanted) / scale).max()) for v in variants)


CHANGES = ["none", "outlier of 1e4", "outlier of 1e6", "large channel", "small output", "small channels"]


def changed(proto: onnx.ModelProto, how: str) -> np.ndarray:
    """The input, after that change of it or of the weights."""
    shape = [each.dim_value for each in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    if how.startswith("outlier"):
        x[(1, shape[1] // 2, *[n // 2 for n in shape[2:]])] = float(how.split()[-1])
    if how == "large channel":
        x[:, 0] *= 1e4
    if how == "small channels":
        x[:, 1:] *= 1e-4
    if how == "small output":
        place = next(i for i, t in enumerate(proto.graph.initializer) if t.name == "w")
        weights = numpy_helper.to_array(proto.graph.initializer[place]).copy()
        weights[3] *= 1e-4
        proto.graph.initializer[place].CopyFrom(numpy_helper.from_array(weights, "w"))
    return x


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("channels", [16, 256])
@pytest.mark.parametrize("size", [[22, 18], [3, 10, 10]])
def test_convolutions(size: list[int], channels: int, how: str) -> None:
    rank = len(size)
    proto = conv_model((channels, 32), size, [3] * rank, pads=[1] * 2 * rank, bias=False, batch=2)
    assert worst(proto, changed(proto, how), [1] * (rank - 2) + [REACH] * 2) < BOUND


@pytest.mark.parametrize("how", [each for each in CHANGES if each != "small output"])
@pytest.mark.parametrize("channels", [16, 256])
def test_transposed_convolutions(channels: int, how: str) -> None:
    proto = transposed_model((channels, 32), [14, 14], pads=[1] * 4, batch=2)
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.zeros(32, np.float32), "b"))
    assert worst(proto, changed(proto, how), [REACH] * 2, transposed=True) < BOUND


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("taps", [3, 5, 7])
def test_planes_of_convolutions_of_few_channels(taps: int, how: str) -> None:
    proto = conv_model((3, 16), [16, 12, 12], [taps, 3, 3], pads=[taps // 2, 1, 1] * 2, bias=False, batch=2)
    assert worst(proto, changed(proto, how), [taps + 3, 1, 1]) < BOUND


def test_what_no_tile_shares_with_an_outlier_or_nan_is_as_without() -> None:
    chain = subgraphs_of(conv_model((16, 16), [26, 26], [3, 3], pads=[1] * 4, batch=1))[-1]
    x = np.random.default_rng(0).standard_normal((1, 16, 26, 26)).astype(np.float32)
    odd = {value: x.copy() for value in (1e6, np.nan, np.inf)}
    for value, data in odd.items():
        data[0, 3, 13, 13] = value
    for variant in BACKEND.variants(chain, BuildOptions(threads=2)):
        (usual,) = run_variant(chain, variant, 2, [x])
        for value, data in odd.items():
            (found,) = run_variant(chain, variant, 2, [data])
            far = np.ones((26, 26), bool)
            far[13 - REACH : 14 + REACH, 13 - REACH : 14 + REACH] = False
            np.testing.assert_array_equal(found[..., far], usual[..., far])
            assert value == 1e6 or not np.isfinite(found[0, :, 12:15, 12:15]).any()
