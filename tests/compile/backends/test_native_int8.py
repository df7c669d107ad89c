"""Products of weights that are stored in 8 bits, against exact sums of what the kernels should have rounded to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.backends.native_kernels import reduced_gemm
from collage.backends.native_kernels.algorithms import NativeRule
from collage.backends.native_kernels.reduced_gemm import WIDENED
from collage.errors import ModuleFileError
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import CHANNELS_LAST, CHANNELS_LAST_BF16, INT8, PLAIN, PLAIN_BF16, is_narrow
from collage.kernel.options import BuildOptions, Variant
from collage.native.kernel_library import has_int8_dots, narrow_problem
from collage.patterns.context import MatchContext
from tests.compile.backends.test_native_bf16 import PIXELS
from tests.helpers.backends.bf16_checks import check, rounded, run
from tests.helpers.backends.native_checks import BACKEND, needs_native, subgraphs_of
from tests.helpers.backends.product_models import EPILOGUES, product_model, weighted_products
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

pytestmark = needs_native
ALLOWED = frozenset({INT8})


def offered(subgraph: Subgraph, threads: int) -> list[Variant]:
    """The variants in 8 bits, each once; without the permission all others are offered as before."""
    exact = BACKEND.variants(subgraph, BuildOptions(threads=threads))
    found = BACKEND.variants(subgraph, BuildOptions(threads=threads, precisions=ALLOWED))
    assert [each for each in found if not each.precision] == list(exact)
    assert len({*found}) == len(found)
    reduced = [each for each in found if each.precision]
    assert {each.precision for each in reduced} <= {INT8}
    return reduced


def longest(proto: onnx.ModelProto) -> Subgraph:
    """The longest chain that some kernel in 8 bits takes."""
    model = import_model(proto)
    found = [f.nodes for f in NativeRule(precisions=ALLOWED).find(MatchContext(model)) if not f.reason]
    return Subgraph(model, max(found, key=len))


def rounded_rows(x: np.ndarray) -> np.ndarray:
    """Each row in 255 steps from its least to its largest number, of which one step is zero."""
    single = np.asarray(x, np.float32)
    low = np.minimum(single.min(-1, keepdims=True), 0)
    high = np.maximum(single.max(-1, keepdims=True), 0)
    scale = np.maximum(high / np.float32(255) - low / np.float32(255), np.finfo(np.float32).tiny)
    inverse = np.float32(1) / scale
    zero = np.minimum(np.rint(-low * inverse), 255)
    steps = np.clip(np.rint(single * inverse) + zero, 0, 255)
    return np.asarray((steps - zero).astype(np.float64) * scale)


def rounded_weights(weights: np.ndarray) -> np.ndarray:
    """Whole numbers from -127 to 127 times the largest magnitude of the output channel, which is the last axis."""
    scale = np.abs(weights).max(0) / np.float32(127)
    steps = np.rint(weights / np.where(scale > 0, scale, 1).astype(np.float64))
    return np.asarray(steps * scale.astype(np.float64))


def wanted(subgraph: Subgraph, variant: Variant, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Exact arithmetic on rounded weights, and on rounded rows unless the weights are widened."""
    graph, root = subgraph.model.graph, subgraph.operators[0]
    pixels = root.op.startswith("nn.conv")
    taken = [rounded(a) if is_narrow(s) else a.astype(np.float64) for a, s in zip(inputs, variant.inputs, strict=True)]
    if WIDENED not in variant.split:
        at = subgraph.inputs.index(root.inputs[0])
        rows = np.moveaxis(taken[at], 1, -1) if pixels else taken[at]
        rows = rounded_rows(rows)
        taken[at] = np.moveaxis(rows, -1, 1) if pixels else rows
    weights = np.asarray(graph.constants[root.inputs[1]])
    matrix = rounded_weights(weights.reshape(len(weights), -1).T if pixels else weights)
    instead = matrix.T.reshape(weights.shape) if pixels else matrix
    return evaluate(subgraph, taken, {root.inputs[1]: instead})


def check_all(subgraph: Subgraph, threads: int, inputs: Sequence[np.ndarray] | None = None) -> list[Variant]:
    rng = np.random.default_rng(0)
    if inputs is None:
        inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in subgraph.input_types]
    variants = offered(subgraph, threads)
    assert variants
    for variant in variants:
        found = run(BACKEND, subgraph, variant, threads, inputs)
        check(variant, found, wanted(subgraph, variant, inputs))
    return variants


@settings(max_examples=40, deadline=None)
@given(weighted_products(), st.sampled_from([1, 2, 3]))
def test_products(proto: onnx.ModelProto, threads: int) -> None:
    check_all(longest(proto), threads)


@pytest.mark.parametrize("then", EPILOGUES)
def test_every_ending(then: tuple[str, ...]) -> None:
    variants = check_all(longest(product_model([1, 17, 65], 100, then=then)), 2)
    assert {each.outputs[0] for each in variants} == {PLAIN, *([] if narrow_problem() else [PLAIN_BF16])}
    assert all(is_narrow(each.inputs[0]) == is_narrow(each.outputs[0]) for each in variants)


def test_many_rows() -> None:
    variants = check_all(longest(product_model([300, 2050], 96, then=("Residual", "Relu"))), 2)
    kinds = {"columns", "rows"} if has_int8_dots() else {"columns, widened", "rows, widened"}
    assert {each.split for each in variants} <= kinds


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", PIXELS)
def test_convolutions_of_pixels(name: str, threads: int) -> None:
    variants = check_all(longest(PIXELS[name]), threads)
    narrow = [] if narrow_problem() else [CHANNELS_LAST_BF16]
    assert {each.outputs[0] for each in variants} == {CHANNELS_LAST, *narrow}


def test_rows_have_ranges_of_their_own() -> None:
    """Outliers and one-sided rows: each is as exact as it is alone, and no number is beyond the range."""
    chain = longest(product_model([6, 64], 48, bias=False))
    x = np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32)
    x[1] *= 1e6
    x[2] = np.abs(x[2])
    x[3] = -np.abs(x[3])
    x[4, 7] = 1e4
    x[5] = 0
    check_all(chain, 1, [x])
    weights = np.asarray(chain.model.graph.constants[chain.operators[0].inputs[1]], np.float64)
    exact = x.astype(np.float64) @ weights
    for variant in (each for each in offered(chain, 1) if not is_narrow(each.inputs[0])):
        (y,) = run(BACKEND, chain, variant, 1, [x])
        off = np.abs(y - exact).max(1) / np.maximum(np.abs(exact).max(1), 1e-30)
        assert off[:5].max() < 0.03
        assert not y[5].any()


def test_tiny_huge_and_odd_rows() -> None:
    chain = longest(product_model([6, 40], 32, bias=False))
    x = np.random.default_rng(2).standard_normal((6, 40)).astype(np.float32)
    x[1] *= 1e-40
    x[2] = np.where(x[2] > 0, 3e38, -3e38).astype(np.float32) / 64
    x[3, 5], x[4, 6] = np.nan, np.inf
    for variant in offered(chain, 1):
        with np.errstate(all="ignore"):
            (y,) = run(BACKEND, chain, variant, 1, [x])
        usual = x.copy()
        usual[3:5] = 0
        (model,) = wanted(chain, variant, [usual])
        assert np.abs(y[1]).max() < 1e-37
        assert np.isnan(y[3]).all()
        assert not np.isfinite(y[4]).any()
        # Sums of huge numbers overflow before the factors of widened weights, which are up to 127, make them smaller.
        for row in (0, 5) if WIDENED in variant.split else (0, 2, 5):
            assert np.abs(y[row] - model[row]).max() <= 1e-2 * np.abs(model[row]).max(), (row, str(variant))


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_longest_sums_do_not_overflow(sign: int) -> None:
    def sum_of(depth: int) -> onnx.ModelProto:
        weights = {"w": np.full((depth, 16), sign, np.float32)}
        return make_model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, depth]}, {"y": [2, 16]}, weights)

    x = np.ones((2, 1 << 16), np.float32)
    x[1] *= -1
    chain = longest(sum_of(1 << 16))
    for variant in offered(chain, 1):
        (y,) = run(BACKEND, chain, variant, 1, [x])
        np.testing.assert_allclose(y, sign * x[:, :16] * 65536, rtol=1e-2)
    assert not offered(subgraphs_of(sum_of((1 << 16) + 1))[-1], 1)


def test_modules_for_other_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = longest(product_model([64, 64], 96))
    monkeypatch.setattr(reduced_gemm, "has_int8_dots", lambda: True)
    options = BuildOptions(variant=offered(chain, 1)[0])
    artifact = BACKEND.codegen(chain, options)
    monkeypatch.setattr(reduced_gemm, "has_int8_dots", lambda: False)
    with pytest.raises(ModuleFileError, match="AVX512-VNNI"):
        BACKEND.load(artifact, options)
