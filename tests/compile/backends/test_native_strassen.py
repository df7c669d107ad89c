"""Strassen's products and pointwise convolutions in all variants, on random shapes."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.backends.native_kernels import strassen
from collage.backends.native_kernels.strassen import _Shape, right_factors, scratch_bytes
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions, Variant
from collage.native.kernel_library import kernel_function
from collage.native.structure import structure
from tests.backends.native_checks import BACKEND, needs_native, run_variant, subgraphs_of
from tests.compile.backends.test_native_gemm import EPILOGUES, product_model
from tests.compile.backends.test_native_winograd import conv_model
from tests.reference import evaluate

pytestmark = needs_native


@contextmanager
def any_size() -> Iterator[None]:
    """Small work is taken, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_LEAST_ROWS", "_LEAST_DEPTH", "_LEAST_COLUMNS", "_LEAST_FLOP"):
            patch.setattr(strassen, name, 1)
        patch.setattr(strassen, "_LEAST_BALANCE", 0)
        yield


def check(subgraph: Subgraph, threads: int) -> set[str]:
    """Names of the variants, each of which computes the right thing."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in subgraph.input_types]
    (wanted,) = evaluate(subgraph, inputs)
    variants = [v for v in BACKEND.variants(subgraph, BuildOptions(threads=threads)) if "strassen" in v.split]
    assert variants
    for variant in variants:
        (found,) = run_variant(subgraph, variant, threads, inputs)
        scale = np.abs(wanted).max() + 1e-3
        np.testing.assert_allclose(found / scale, wanted / scale, atol=5e-6, err_msg=str(variant))
    return {str(variant) for variant in variants}


@st.composite
def convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    channels = st.integers(1, 5)
    return conv_model(
        (32 * draw(channels), 32 * draw(channels)),
        [draw(st.integers(1, [60, 9, 5][rank - 1])) for _ in range(rank)],
        [1] * rank,
        batch=draw(st.integers(1, 2)),
        bias=draw(st.booleans()),
        then=draw(st.sampled_from([(), ("Relu",), ("Clip",), ("Add",), ("Add", "Relu")])),
        strides=[draw(st.integers(1, 2)) for _ in range(rank)],
    )


@settings(max_examples=120, deadline=None)
@given(convolutions(), st.sampled_from([1, 2, 3]))
def test_convolutions(proto: onnx.ModelProto, threads: int) -> None:
    with any_size():
        check(subgraphs_of(proto)[-1], threads)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from(EPILOGUES),
    st.sampled_from([1, 2, 3]),
)
def test_products(rows: int, depth: int, columns: int, then: tuple[str, ...], threads: int) -> None:
    with any_size():
        check(subgraphs_of(product_model([1, rows, 32 * depth], 32 * columns, then=then))[-1], threads)


def test_many_chunks() -> None:
    chain = subgraphs_of(conv_model((256, 160), [31, 37], [1, 1], then=("Add", "Relu")))[-1]
    assert check(chain, 2) == {
        f"{layout}; strassen, {split}"
        for layout in ("blocked", "channels-last")
        for split in ("rows", "output channels")
    }
    assert check(chain, 1) == {"blocked; strassen", "channels-last; strassen"}


def test_variants_of_a_product() -> None:
    chain = subgraphs_of(product_model([140, 768], 192, then=("Gelu",)))[-1]
    assert check(chain, 2) == {"plain; strassen, rows", "plain; strassen, output channels"}
    deep = subgraphs_of(product_model([130, 2112], 192, then=("Residual", "Relu")))[-1]
    assert len(check(deep, 2)) == 2


def test_factors_are_the_sums_of_quarters() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    factors = right_factors(weights, 32)
    wide, narrow = factors[: 7 * 32 * 32].reshape(7, 32, 32), factors[7 * 32 * 32 :].reshape(7, 32, 16)
    b11, b21, t2, t3, minus_t4, t1, b22 = np.concatenate([wide, narrow], -1).astype(np.float64)
    np.testing.assert_array_equal(b11, weights[:32, :48])
    np.testing.assert_array_equal(b22, weights[32:, 48:])
    b12 = weights[:32, 48:]
    for found, wanted in ((t1, b12 - b11), (t2, b22 - t1), (t3, b22 - b12), (minus_t4, b21 - t2)):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_scratch_memory_is_as_large_as_the_kernel_wants() -> None:
    wanted = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(kernel_function("collage_strassen_scratch"))
    for channels, size in (((128, 64), [40, 40]), ((512, 256), [14, 14]), ((2080, 256), [7, 7])):
        chain = subgraphs_of(conv_model(channels, size, [1, 1]))[-1]
        for variant in BACKEND.variants(chain, BuildOptions(threads=2)):
            artifact = BACKEND.codegen(chain, BuildOptions(threads=2, variant=variant))
            numbers = json.loads(artifact[8 : 8 + int.from_bytes(artifact[4:8], "little")])["numbers"]
            assert 4 * wanted(ctypes.addressof(structure(_Shape, numbers))) == scratch_bytes(numbers)


@pytest.mark.parametrize(
    "proto",
    [
        conv_model((128, 128), [40, 40], [1, 1], pads=[1] * 4),
        conv_model((144, 128), [40, 40], [1, 1]),
        conv_model((128, 80), [40, 40], [1, 1]),
        conv_model((128, 128), [3, 3], [1, 1]),
        conv_model((64, 128), [40, 40], [1, 1]),
        product_model([64, 776], 768),
        product_model([64, 768], 768),
    ],
)
def test_refusals(proto: onnx.ModelProto) -> None:
    for chain in subgraphs_of(proto):
        names: list[Variant] = list(BACKEND.variants(chain, BuildOptions()))
        assert not any("strassen" in each.split for each in names)
