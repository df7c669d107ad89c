"""Products of weights that are stored as bfloat16, against a float64 model of the rounding."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.backends.native_kernels import reduced_gemm
from collage.backends.native_kernels.algorithms import NativeRule
from collage.backends.native_kernels.reduced_gemm import TILES, WIDENED
from collage.errors import ModuleFileError
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import (
    BLOCKED_BF16,
    CHANNELS_LAST,
    CHANNELS_LAST_BF16,
    PLAIN,
    PLAIN_BF16,
    is_narrow,
)
from collage.kernel.options import BuildOptions, Variant
from collage.native.kernel_library import amx_problem, has_bf16_dots, narrow_problem
from collage.native.packed import from_artifact
from collage.patterns.context import MatchContext
from tests.helpers.backends.bf16_checks import (
    ALLOWED,
    check_all,
    check_special_values,
    convolution,
    model,
    reduced_variants,
    run,
)
from tests.helpers.backends.native_checks import BACKEND, needs_native, subgraphs_of
from tests.helpers.backends.product_models import EPILOGUES, product_model, weighted_products

pytestmark = needs_native
needs_narrow = pytest.mark.skipif(bool(narrow_problem()), reason=narrow_problem())
needs_amx = pytest.mark.skipif(bool(amx_problem()), reason=amx_problem())
needs_dots = pytest.mark.skipif(not has_bf16_dots(), reason="this processor has no AVX512-BF16")


def rounds_of(subgraph: Subgraph) -> object:
    """Dot products round the data wherever it comes from; widened weights meet it as it is stored."""
    data = subgraph.inputs.index(subgraph.operators[0].inputs[0])

    def rounds(variant: Variant, position: int) -> bool:
        narrow = is_narrow(variant.inputs[position])
        return narrow or (position == data and WIDENED not in variant.split)

    return rounds


def longest_of_all(proto: onnx.ModelProto) -> Subgraph:
    """The longest chain that some kernel of a reduced precision takes."""
    model = import_model(proto)
    rule = NativeRule(precisions=ALLOWED)
    found = [each.nodes for each in rule.find(MatchContext(model)) if not each.reason]
    return Subgraph(model, max(found, key=len))


def longest(proto: onnx.ModelProto) -> Subgraph:
    return subgraphs_of(proto)[-1]


@settings(max_examples=40, deadline=None)
@given(weighted_products(), st.sampled_from([1, 2, 3]))
def test_products(proto: onnx.ModelProto, threads: int) -> None:
    chain = longest(proto)
    check_all(BACKEND, chain, threads, rounds=rounds_of(chain))  # type: ignore[arg-type]


@pytest.mark.parametrize("then", EPILOGUES)
def test_every_ending(then: tuple[str, ...]) -> None:
    chain = longest(product_model([1, 17, 65], 100, then=then))
    built = check_all(BACKEND, chain, 2, rounds=rounds_of(chain))  # type: ignore[arg-type]
    assert {each.outputs[0] for each in built} == {PLAIN, *([] if narrow_problem() else [PLAIN_BF16])}


def test_many_rows() -> None:
    chain = longest(product_model([300, 2050], 96, then=("Residual", "Relu")))
    built = check_all(BACKEND, chain, 2, rounds=rounds_of(chain))  # type: ignore[arg-type]
    kinds = {each.split.split(", ", 1)[-1] for each in built}
    assert kinds == ({TILES} if not amx_problem() else {"columns", "rows"} if has_bf16_dots() else {WIDENED})


PIXELS = {
    "pixels": convolution((1, 64, 9, 7), (48, 64, 1, 1), "Add", "Relu"),
    "of 3 axes": convolution((2, 20, 3, 4, 5), (33, 20, 1, 1, 1), "Sigmoid"),
    "one row": convolution((1, 33, 50), (16, 33, 1)),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", PIXELS)
def test_convolutions_of_pixels(name: str, threads: int) -> None:
    chain = longest_of_all(PIXELS[name])
    built = check_all(BACKEND, chain, threads, rounds=rounds_of(chain))  # type: ignore[arg-type]
    narrow = [] if narrow_problem() else [CHANNELS_LAST_BF16]
    assert {each.outputs[0] for each in built} == {CHANNELS_LAST, *narrow}


GROUPS = {
    "of 4": convolution((1, 32, 9, 7), (32, 4, 3, 3), "Add", "Relu", group=8),
    "of 8, strides": convolution((2, 48, 8, 9), (48, 8, 3, 3), "Relu", group=6, strides=[2, 2]),
    "of 32": convolution((1, 64, 6, 6), (64, 32, 3, 3), "Relu", group=2),
    "single": convolution((1, 40, 11, 12), (40, 1, 5, 5), "Relu", group=40),
    "3d": convolution((1, 32, 4, 5, 6), (32, 4, 3, 3, 3), group=8),
}


@needs_narrow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", GROUPS)
def test_narrow_groups(name: str, threads: int) -> None:
    """Weights and arithmetic are float32, so only what is stored is rounded."""
    built = check_all(BACKEND, longest_of_all(GROUPS[name]), threads, of_weights=False)
    assert {each.inputs[0] for each in built} == {BLOCKED_BF16, CHANNELS_LAST_BF16}
    assert all(each.inputs[0] == each.outputs[0] for each in built)


@needs_narrow
def test_special_values_in_narrow_groups() -> None:
    chain = longest_of_all(convolution((1, 32, 9, 7), (32, 4, 3, 3), group=8))
    check_special_values(BACKEND, chain, of_weights=False, least=2)


def test_special_values() -> None:
    """NaN and infinities go where IEEE's arithmetic has them; denormals may be zeros."""
    chain = longest(product_model([4, 6], 32, bias=False))
    x = np.ones((4, 6), np.float32)
    x[0, 3], x[1, 2], x[2, :] = np.nan, np.inf, 1e-40
    for variant in reduced_variants(BACKEND, chain, 1):
        (y,) = run(BACKEND, chain, variant, 1, [x])
        with np.errstate(all="ignore"):
            (exact,) = model(chain, variant, [x])
        assert np.isnan(y[0]).all()
        np.testing.assert_array_equal(y[1], exact[1])
        assert np.isinf(y[1]).all()
        assert np.abs(y[2]).max() < 1e-37
        np.testing.assert_allclose(y[3], exact[3], rtol=1e-2, atol=1e-3)


def test_modules_for_other_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variant that needs instructions is refused where these are missing, and no other one."""
    chain = longest(product_model([4, 64], 96))
    monkeypatch.setattr(reduced_gemm, "has_bf16_dots", lambda: True)
    monkeypatch.setattr(reduced_gemm, "narrow_problem", lambda: "")
    made = {}
    for amx in ("", "no AMX"):
        monkeypatch.setattr(reduced_gemm, "amx_problem", lambda amx=amx: amx)
        for each in reduced_variants(BACKEND, chain, 1):
            made[each] = BACKEND.codegen(chain, BuildOptions(variant=each))
    monkeypatch.setattr(reduced_gemm, "has_bf16_dots", lambda: False)
    monkeypatch.setattr(reduced_gemm, "narrow_problem", lambda: "no AVX-512")
    missing = set()
    for variant, artifact in made.items():
        narrow = is_narrow(variant.inputs[0]) or is_narrow(variant.outputs[0])
        wanted = "AMX" if TILES in variant.split else "AVX-512" if narrow else "AVX512-BF16"
        if WIDENED in variant.split and not narrow:
            BACKEND.load(artifact, BuildOptions(variant=variant))
            continue
        with pytest.raises(ModuleFileError, match=f"{wanted}.*: compile the model here"):
            BACKEND.load(artifact, BuildOptions(variant=variant))
        missing.add(wanted)
    assert missing == {"AMX", "AVX-512", "AVX512-BF16"}


@needs_amx
@pytest.mark.parametrize("depth", [6, 32, 50, 100, 2050])
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 33, 300])
def test_tiles_of_every_height_and_depth(rows: int, depth: int) -> None:
    """Rows that are no whole tiles, pairs of k that are none, and columns that are no whole panel."""
    chain = longest(product_model([rows, depth], 70))
    for threads in (1, 2):
        built = check_all(BACKEND, chain, threads, rounds=rounds_of(chain))  # type: ignore[arg-type]
        assert any(TILES in each.split for each in built)


@needs_dots
@pytest.mark.parametrize("rows", [1, 9, 100])
def test_dot_products_where_there_are_no_tiles(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What processors without AMX run is tested on those that have it, too."""
    monkeypatch.setattr(reduced_gemm, "amx_problem", lambda: "there is no AMX")
    chain = longest(product_model([rows, 100], 70, then=("Residual", "Relu")))
    built = check_all(BACKEND, chain, 2, rounds=rounds_of(chain))  # type: ignore[arg-type]
    assert any(WIDENED not in each.split for each in built)
    assert not any(TILES in each.split for each in built)


@needs_amx
def test_tiles_leave_the_weights_of_dot_products_as_they_are() -> None:
    """Kernels for few and for many rows share one copy of the weights in a decoder."""
    chain = longest(product_model([4, 100], 96))
    splits = {each.split: each for each in reduced_variants(BACKEND, chain, 1)}
    weights = [
        from_artifact(BACKEND.codegen(chain, BuildOptions(variant=splits[split])))[1].arrays["weights"]
        for split in (TILES, WIDENED)
    ]
    np.testing.assert_array_equal(*weights)
