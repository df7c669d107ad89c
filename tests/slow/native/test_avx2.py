"""The kernels for AVX2 where those for AVX-512 would be used: the tests of kernels once more, on other kernels."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collage.errors import CollageError
from collage.native import kernel_library
from collage.native.kernel_library import (
    has_bf16_dots,
    has_int8_dots,
    kernel_function,
    library_function,
    narrow_problem,
    rounding_problem,
)
from collage.native.library import address_of
from tests.compile.backends import (
    test_native_bf16,
    test_native_gemm,
    test_native_int8,
    test_native_lstm,
    test_native_narrow,
    test_native_shallow,
    test_native_top_k,
    test_native_winograd,
)
from tests.helpers.backends.native_checks import needs_native
from tests.helpers.backends.product_models import EPILOGUES, weighted_products
from tests.slow.backends import test_native_direct, test_native_experts
from tests.slow.serve import test_attention

pytestmark = needs_native

KERNELS = {
    "gemm": (weighted_products(), test_native_gemm.test_products),
    "bf16_gemm": (weighted_products(), test_native_bf16.test_products),
    "int8_gemm": (weighted_products(), test_native_int8.test_products),
    "direct_conv": (test_native_direct.convolutions(), test_native_direct.test_convolutions),
    "narrow_transposed": (test_native_narrow.convolutions(), test_native_narrow.test_convolutions),
    "shallow_conv": (test_native_shallow.convolutions(), test_native_shallow.test_convolutions),
    "winograd": (test_native_winograd.convolutions(), test_native_winograd.test_convolutions),
}


@pytest.fixture(autouse=True)
def _avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_library, "has_avx512", lambda: False)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    models, check = KERNELS[name]
    made: Any = check
    body = made.hypothesis.inner_test
    settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.differing_executors])(
        given(models, st.sampled_from([1, 2]))(lambda proto, threads: body(proto, threads))
    )()


@pytest.mark.parametrize("then", EPILOGUES)
def test_endings(then: tuple[str, ...]) -> None:
    test_native_gemm.test_every_ending_is_one_kernel(then)
    test_native_bf16.test_every_ending(then)
    test_native_int8.test_every_ending(then)


@pytest.mark.parametrize("function", ["Gelu", "GeluTanh", "Tanh", "Sigmoid", "Silu"])
def test_functions(function: str) -> None:
    test_native_gemm.test_functions_are_accurate(function, 40.0)


@pytest.mark.parametrize("function", ["Gelu", "Tanh", "Sigmoid", "Relu"])
def test_nan_and_infinity(function: str) -> None:
    test_native_gemm.test_nan_and_infinity(function)


def test_weights_in_fewer_bits() -> None:
    for check in (test_native_bf16, test_native_int8):
        check.test_many_rows()
        check.test_convolutions_of_pixels("pixels", 2)
    test_native_bf16.test_special_values()
    test_native_int8.test_tiny_huge_and_odd_rows()
    test_native_int8.test_rows_have_ranges_of_their_own()


def test_lstm() -> None:
    test_native_lstm.test_layers_of_all_directions("bidirectional", 6)
    test_native_lstm.test_numbers_far_from_zero_saturate()


def test_top_k() -> None:
    test_native_top_k.test_values_and_places((5, 32), 4, 1)


def test_experts() -> None:
    for rows in (3, 100):
        test_native_experts.test_rows_choose_any_expert(4, rows, 2)
        test_native_experts.test_matrices_of_any_size(64, 96)
    for precision in test_native_experts.KINDS:
        test_native_experts.test_a_row_is_the_same_however_many_there_are(precision, 2099, 37)
        test_native_experts.test_odd_rows_keep_to_themselves(precision, 37)
    test_native_experts.test_columns_of_zeros_are_zeros(2)


def test_attention_to_caches_of_all_types() -> None:
    test_attention.test_long_sequences_are_split_and_merged(2)
    for heads in (
        test_attention.Heads(6, 2, 64, 0, False, 0.125),
        test_attention.Heads(2, 1, 20, 0, False, 0.2),
    ):
        test_attention.test_heads(heads)
        test_attention.test_cache_in_bfloat16(heads)
        test_attention.test_cache_in_8_bits(heads)
    for scoring in test_attention.SCORINGS:
        test_attention.test_how_keys_are_scored(scoring)
    test_attention.test_a_stream_has_the_same_numbers_whatever_runs_beside_it()
    test_attention.test_scores_of_any_size()


def test_which_library_they_come_from() -> None:
    library = kernel_library._load_avx2()
    for name in ("collage_gemm", "collage_direct_conv"):
        assert kernel_function(name) == address_of(getattr(library, name))
    assert library_function("collage_attention_attend") == address_of(library.collage_attention_attend)
    assert library_function("collage_attention_plan") is not None  # which is in the other one


def test_what_needs_avx_512_is_not_there() -> None:
    assert "AVX-512" in narrow_problem()
    assert "AVX-512" in rounding_problem()
    assert not has_bf16_dots()
    assert not has_int8_dots()
    with pytest.raises(CollageError, match="AVX-512"):
        kernel_function("collage_bf16_direct_conv")


def test_a_library_that_was_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        collage_kernels_isa = staticmethod(lambda: 256)
        collage_kernels_revision = staticmethod(lambda: kernel_library.REVISION)

    def missing() -> Any:
        raise OSError("it was not built")

    kernel_library.kernels_problem.cache_clear()
    monkeypatch.setattr(kernel_library, "_load", Old)
    monkeypatch.setattr(kernel_library, "_load_avx2", missing)
    try:
        assert "it was not built" in kernel_library.kernels_problem()
    finally:
        kernel_library.kernels_problem.cache_clear()
