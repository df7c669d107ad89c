"""Convolutions of few input channels in all variants, on random shapes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.backends.native_kernels.winograd import POINTS, transforms
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from collage.native import team_of
from tests.compile.backends.test_native_winograd import check, conv_model
from tests.helpers.backends.native_checks import BACKEND, needs_native, subgraphs_of

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
    size = [draw(st.integers(max(1, k - pads[i] - pads[rank + i]), k + extra[i])) for i, k in enumerate(kernel)]
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


@settings(max_examples=80, deadline=None)
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


@pytest.mark.parametrize(("outputs", "taps"), [(2, 3), (4, 3), (4, 5), (4, 7), (2, 7)])
def test_transforms_convolve(outputs: int, taps: int) -> None:
    found = transforms(POINTS[outputs + taps - 2], outputs, taps)
    rng = np.random.default_rng(0)
    inputs, weights = rng.standard_normal(outputs + taps - 1), rng.standard_normal(taps)
    product = found.after @ ((found.weights @ weights) * (found.before @ inputs))
    np.testing.assert_allclose(product, np.correlate(inputs, weights), atol=1e-12)


def _numbers(chain: Subgraph, threads: int) -> dict[str, Any]:
    options = BuildOptions(threads=threads)
    artifact = BACKEND.codegen(chain, BuildOptions(threads=threads, variant=BACKEND.variants(chain, options)[0]))
    return json.loads(artifact[8 : 8 + int.from_bytes(artifact[4:8], "little")])["numbers"]
