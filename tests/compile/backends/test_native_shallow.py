"""Convolutions of few input channels in all variants, on random shapes."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.backends.native_kernels.points import POINTS, transforms
from collage.backends.native_kernels.shallow import _Shape, scratch_bytes
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from collage.native import team_of
from collage.native.kernel_library import kernel_function
from tests.backends.native_checks import BACKEND, needs_native, refusals_of, run_variant, subgraphs_of
from tests.compile.backends.test_native_winograd import check, conv_model

pytestmark = needs_native


@st.composite
def convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    rank = draw(st.sampled_from([1, 2, 2, 3, 3]))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank - 1)] + [draw(st.integers(1, 2))]
    if rank == 3 and draw(st.booleans()):
        kernel[0], strides[0] = draw(st.sampled_from([3, 5, 7])), 1
    pads = [draw(st.integers(0, k)) for k in kernel + kernel]
    extra = [6, 8, 36][3 - rank :]
    size = [
        draw(st.integers(max(1, k - pads[i] - pads[rank + i]), k + extra[i])) for i, k in enumerate(kernel)
    ]
    return conv_model(
        (draw(st.integers(1, 8)), 16 * draw(st.integers(1, 3))),
        size,
        kernel,
        batch=draw(st.integers(1, 2)),
        bias=draw(st.booleans()),
        then=draw(st.sampled_from([(), ("Relu",), ("Clip",), ("Add",), ("Add", "Relu")])),
        pads=pads,
        strides=strides,
    )


@settings(max_examples=150, deadline=None)
@given(convolutions(), st.sampled_from([1, 2, 3]))
def test_convolutions(proto: onnx.ModelProto, threads: int) -> None:
    check(subgraphs_of(proto)[-1], threads)


@pytest.mark.parametrize(("size", "chunked"), [([9, 20, 20], False), ([6, 45, 230], True)])
def test_a_networks_first_layer(size: list[int], chunked: bool) -> None:
    proto = conv_model((3, 64), size, [7, 7, 7], strides=[1, 2, 2], pads=[3] * 6, then=("Relu",))
    chain = subgraphs_of(proto)[-1]
    assert check(chain, 1) == {"winograd over planes"}
    numbers = _numbers(chain, 1)
    assert (numbers["row_chunk"] < numbers["out"][1]) is chunked


@pytest.mark.parametrize("relay", [False, True])
def test_long_shares_are_cut_into_pieces(relay: bool) -> None:
    chain = subgraphs_of(conv_model((3, 64), [6, 45, 230], [7, 7, 7], strides=[1, 2, 2], pads=[3] * 6))[-1]
    numbers = _numbers(chain, 2)
    assert numbers["pieces"] > 1 and numbers["shares"] == 2 * numbers["pieces"]
    team_of(2).beware(10.0 if relay else 0.0)
    try:
        check(chain, 2)
    finally:
        team_of(2).beware(0.0)


def test_variants() -> None:
    chain = subgraphs_of(conv_model((3, 16), [64, 64], [3, 3], strides=[2, 2], pads=[1] * 4))[-1]
    variants = BACKEND.variants(chain, BuildOptions(threads=2))
    assert {str(each) for each in variants} == {
        "plain -> blocked; rows",
        "plain -> channels-last; rows",
        "plain -> blocked",
        "plain -> channels-last",
    }


def test_scratch_memory_is_as_large_as_the_kernel_wants() -> None:
    wanted = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(
        kernel_function("collage_shallow_conv_scratch")
    )
    for size, kernel in (([64, 63], [3, 5]), ([9, 30, 31], [5, 7, 7]), ([3, 30, 31], [3, 2, 1])):
        chain = subgraphs_of(conv_model((3, 48), size, kernel, strides=[1, 2, 2][-len(size) :]))[-1]
        numbers = _numbers(chain, 2)
        shape = _Shape()
        for name, kind in _Shape._fields_:
            setattr(shape, name, kind(*numbers[name]) if isinstance(numbers[name], list) else numbers[name])
        assert 4 * wanted(ctypes.addressof(shape)) == scratch_bytes(numbers)


def test_nan_stays_where_it_is_seen() -> None:
    chain = subgraphs_of(conv_model((3, 16), [12, 12], [3, 3], then=("Relu",), pads=[1] * 4))[-1]
    x = np.zeros((1, 3, 12, 12), np.float32)
    x[0, 1, 4, 4] = np.nan
    for variant in BACKEND.variants(chain, BuildOptions()):
        (y,) = run_variant(chain, variant, 1, [x])
        assert np.isnan(y).sum() == 16 * 9


@pytest.mark.parametrize(("outputs", "taps"), [(2, 3), (4, 3), (4, 5), (4, 7), (2, 7)])
def test_transforms_convolve(outputs: int, taps: int) -> None:
    found = transforms(POINTS[outputs + taps - 2], outputs, taps)
    rng = np.random.default_rng(0)
    inputs, weights = rng.standard_normal(outputs + taps - 1), rng.standard_normal(taps)
    product = found.after @ ((found.weights @ weights) * (found.before @ inputs))
    np.testing.assert_allclose(product, np.correlate(inputs, weights), atol=1e-12)


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (conv_model((9, 16), [7, 7], [5, 5]), "9 input channels are not few"),
        (conv_model((3, 24), [7, 7], [3, 3]), "24 output channels"),
        (conv_model((3, 16), [9, 9], [3, 3], strides=[1, 3]), "at every 3 columns"),
        (conv_model((3, 16), [9, 9], [3, 3], dilations=[2, 2]), "dilated"),
    ],
)
def test_refusals(proto: onnx.ModelProto, reason: str) -> None:
    assert any(reason in each for each in refusals_of(proto))


def _numbers(chain: Subgraph, threads: int) -> dict[str, Any]:
    options = BuildOptions(threads=threads)
    artifact = BACKEND.codegen(
        chain, BuildOptions(threads=threads, variant=BACKEND.variants(chain, options)[0])
    )
    return json.loads(artifact[8 : 8 + int.from_bytes(artifact[4:8], "little")])["numbers"]
