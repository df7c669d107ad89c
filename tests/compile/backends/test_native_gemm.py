"""Products with constant matrices, in all variants, on random shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.backends.native_kernels.algorithm import COLUMNS
from collage.backends.native_kernels.gemm import IN_ORDER, words
from collage.kernel.options import BuildOptions, Variant
from collage.native.kernel_library import narrow_problem
from collage.native.packed import from_artifact, to_bytes
from tests.helpers.backends.native_checks import (
    BACKEND,
    check_all_variants,
    needs_native,
    run_variant,
    subgraphs_of,
)
from tests.helpers.backends.product_models import EPILOGUES, product_model, weighted_products

pytestmark = needs_native


@settings(max_examples=80, deadline=None)
@given(weighted_products(), st.sampled_from([1, 2, 3]))
def test_products(proto: onnx.ModelProto, threads: int) -> None:
    check_all_variants(subgraphs_of(proto)[-1], threads)


@pytest.mark.parametrize("then", EPILOGUES)
def test_every_ending_is_one_kernel(then: tuple[str, ...]) -> None:
    model = product_model([1, 17, 64], 100, then=then)
    (whole,) = [each for each in subgraphs_of(model) if len(each.outputs) == 1][-1:]
    assert whole.outputs == tuple(whole.model.graph.outputs)
    check_all_variants(whole, 2)


@pytest.mark.parametrize("function", ["Gelu", "GeluTanh", "Tanh", "Sigmoid", "Silu"])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 40.0])
def test_functions_are_accurate(function: str, spread: float) -> None:
    check_all_variants(subgraphs_of(product_model([64, 32], 160, then=(function,), scale=spread))[-1], 1)


def test_many_rows() -> None:
    chain = subgraphs_of(product_model([300, 64], 96, then=("Residual", "Relu")))[-1]
    splits = {variant.split for variant in check_all_variants(chain, 2)}
    assert splits == {"columns", "rows", ""}


@pytest.mark.parametrize("columns", [96, 100, 37])
def test_a_row_is_the_same_however_many_there_are(columns: int) -> None:
    """Few rows are computed in another way, and a token must not depend on who shares its iteration."""
    depth = 2100  # several slices, which are no multiples of what is prefetched at a time
    x = np.random.default_rng(0).standard_normal((40, depth)).astype(np.float32)
    found = {}
    for rows in (*range(1, 10), 40):
        chain = subgraphs_of(product_model([rows, depth], columns, then=("Residual",)))[-1]
        residual = np.ones((rows, columns), np.float32)
        variants = [v for v in BACKEND.variants(chain, BuildOptions(threads=2)) if v.split == "columns"]
        (found[rows],) = run_variant(chain, variants[0], 2, [x[:rows], residual])
    for rows, y in found.items():
        np.testing.assert_array_equal(y, found[40][:rows])


@pytest.mark.parametrize("function", ["Gelu", "Tanh", "Sigmoid", "Relu"])
def test_nan_and_infinity(function: str) -> None:
    limits = {"Gelu": (np.inf, np.nan), "Tanh": (1, -1), "Sigmoid": (1, 0), "Relu": (np.inf, 0)}[function]
    chain = subgraphs_of(product_model([4, 1], 1, bias=False, then=(function,)))[-1]
    sign = np.sign(np.asarray(chain.model.graph.constants[chain.operators[0].inputs[1]]).item())
    x = (sign * np.array([[np.nan], [np.inf], [-np.inf], [1e30]])).astype(np.float32)
    (y,) = run_variant(chain, BACKEND.variants(chain, BuildOptions())[0], 1, [x])
    assert np.isnan(y[0, 0])
    np.testing.assert_array_equal((y[1, 0], y[2, 0]), limits)
    assert y[3, 0] == 1 or y[3, 0] > 1e29


def test_artifacts_keep_the_order_of_their_numbers() -> None:
    """A module file that was written before has the same bytes."""
    chain = subgraphs_of(product_model([300, 64], 96, then=("Residual", "Relu")))[-1]
    for variant in BACKEND.variants(chain, BuildOptions()):
        _, packed = from_artifact(BACKEND.codegen(chain, BuildOptions(variant=variant)))
        names = list(dict(packed.numbers))
        assert names[-6:] == ["activation", "residual_first", "low", "high", "data", "residual"]
        assert packed.numbers["residual"] is not None and packed.numbers["low"] == 0.0


@pytest.mark.parametrize("rows", [1, 8, 9])
def test_few_rows_may_read_the_weights_in_order(rows: int) -> None:
    """They are in one tile. It is offered where a tile has eight rows; with AVX2 it is so anyway."""
    chain = subgraphs_of(product_model([rows, 700], 1200, then=("Relu",)))[-1]
    splits = {variant.split for variant in check_all_variants(chain, 2)}
    offered = {each for each in splits if each.endswith(IN_ORDER)}
    others = splits - offered if rows <= 8 and not narrow_problem() else set()
    assert COLUMNS in splits and offered == {words(each, IN_ORDER) for each in others}


def test_an_artifact_that_is_older_than_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = subgraphs_of(product_model([2, 64], 96))[-1]
    options = BuildOptions(threads=2, variant=Variant(split=COLUMNS))
    name, packed = from_artifact(BACKEND.codegen(chain, options))
    numbers = {key: value for key, value in packed.numbers.items() if key != "in_order"}
    x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    (wanted,) = run_variant(chain, options.variant, 2, [x])
    old = to_bytes(name, replace(packed, numbers=numbers))
    monkeypatch.setattr(type(BACKEND), "codegen", lambda self, subgraph, options: old)
    (found,) = run_variant(chain, options.variant, 2, [x])
    np.testing.assert_array_equal(found, wanted)
