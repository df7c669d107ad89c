"""Transposed convolutions to few channels in all variants, on random shapes."""

from __future__ import annotations

import ctypes
import json

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.backends.native_kernels.narrow import _Shape, scratch_bytes
from collage.kernel.options import BuildOptions
from collage.native.kernel_library import kernel_function
from collage.native.structure import structure
from tests.backends.native_checks import (
    BACKEND,
    check_all_variants,
    needs_native,
    refusals_of,
    run_variant,
    subgraphs_of,
)
from tests.compile.backends.test_native_winograd import transposed_model

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


@settings(max_examples=120, deadline=None)
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
        wanted = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(
            kernel_function("collage_narrow_transposed_scratch")
        )
        assert 4 * wanted(ctypes.addressof(structure(_Shape, numbers))) == scratch_bytes(numbers)


def test_nan_stays_where_it_is_seen() -> None:
    chain = subgraphs_of(transposed_model((16, 3), [8, 20], then=("Tanh",), pads=[1] * 4))[-1]
    x = np.zeros((1, 16, 8, 20), np.float32)
    x[0, 5, 3, 7] = np.nan
    for variant in BACKEND.variants(chain, BuildOptions()):
        (y,) = run_variant(chain, variant, 1, [x])
        assert np.isnan(y).sum() == 3 * 16
        assert np.isnan(y[0, :, 5:9, 13:17]).all()


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (transposed_model((16, 5), [4, 4]), "5 output channels are not few"),
        (transposed_model((24, 3), [4, 4]), "24 input channels"),
        (transposed_model((16, 3), [4, 4], strides=[1, 2]), "at distances of (1, 2)"),
        (transposed_model((16, 3), [8, 8], pads=[3, 0, 0, 0]), "a padding of (3, 0)"),
    ],
)
def test_refusals(proto: onnx.ModelProto, reason: str) -> None:
    assert not subgraphs_of(proto)
    assert any(reason in each for each in refusals_of(proto))
