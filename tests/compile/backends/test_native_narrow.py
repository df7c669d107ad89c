"""Transposed convolutions to few channels in all variants, on random shapes."""

from __future__ import annotations

import json

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.kernel.options import BuildOptions
from tests.compile.backends.test_native_winograd import transposed_model
from tests.helpers.backends.native_checks import (
    BACKEND,
    check_all_variants,
    needs_native,
    subgraphs_of,
)

pytestmark = needs_native


@st.composite
def convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    return transposed_model(
        (16 * draw(st.integers(1, 3)), draw(st.integers(1, 4))),
        [draw(st.integers(2, 9)), draw(st.sampled_from([2, 3, 8, 15, 16, 17, 31, 32, 33, 40]))],
        batch=draw(st.integers(1, 2)),
        then=draw(st.sampled_from([(), ("Relu",), ("Tanh",), ("Sigmoid",)])),
        pads=[draw(st.integers(0, 2)) for _ in range(4)],
        output_padding=[draw(st.integers(0, 1)), draw(st.integers(0, 1))],
    )


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.sampled_from([1, 2, 3]))
def test_convolutions(proto: onnx.ModelProto, threads: int) -> None:
    check_all_variants(subgraphs_of(proto)[-1], threads)


def test_rows_in_chunks() -> None:
    chain = subgraphs_of(transposed_model((64, 3), [41, 60], then=("Tanh",), pads=[1] * 4))[-1]
    variants = check_all_variants(chain, 2)
    assert {str(each) for each in variants} == {
        "blocked -> plain; rows",
        "channels-last -> plain; rows",
        "blocked -> plain",
        "channels-last -> plain",
    }
    for variant in variants:
        artifact = BACKEND.codegen(chain, BuildOptions(threads=2, variant=variant))
        numbers = json.loads(artifact[8 : 8 + int.from_bytes(artifact[4:8], "little")])["numbers"]
        assert numbers["row_chunk"] < 41 / 2
