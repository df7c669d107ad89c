"""Direct convolutions of narrow groups and single channels, in all variants, on random shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.errors import CollageError, ModuleFileError
from collage.kernel.options import BuildOptions
from tests.helpers.backends.native_checks import (
    BACKEND,
    check_all_variants,
    needs_native,
    run_variant,
    subgraphs_of,
)
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

pytestmark = needs_native

WIDTHS = (1, 2, 3, 3, 4, 5, 6, 7)


def conv_model(
    groups: int,
    per_group: tuple[int, int],
    size: list[int],
    kernel: list[int],
    *,
    batch: int = 1,
    bias: bool = True,
    then: tuple[str, ...] = (),
    **attrs: Any,
) -> onnx.ModelProto:
    """A grouped convolution of ``per_group`` channels, and then Relu, Clip, Add (of an input) or Mul."""
    rng = np.random.default_rng(0)
    ins, outs = per_group
    rank = len(size)
    numbers = {"w": rng.standard_normal((groups * outs, ins, *kernel)).astype(np.float32)}
    if bias:
        numbers["b"] = rng.standard_normal(groups * outs).astype(np.float32)
    inputs: dict[str, list[int]] = {"x": [batch, groups * ins, *size]}
    nodes = [helper.make_node("Conv", ["x", *numbers], ["y"], group=groups, kernel_shape=kernel, **attrs)]
    pads, strides = attrs.get("pads", [0] * 2 * rank), attrs.get("strides", [1] * rank)
    out = [(n + pads[i] + pads[rank + i] - kernel[i]) // strides[i] + 1 for i, n in enumerate(size)]
    for i, op in enumerate(then):
        operands = {"Clip": ["low", "high"], "Add": [f"r{i}"], "Mul": ["factor"]}.get(op, [])
        numbers |= {"low": np.array(0.5, np.float32), "high": np.array(6, np.float32)} if op == "Clip" else {}
        numbers |= (
            {"factor": rng.standard_normal((groups * outs, *[1] * rank)).astype(np.float32)} if op == "Mul" else {}
        )
        if op == "Add":
            inputs[f"r{i}"] = [batch, groups * outs, *out]
        nodes.append(helper.make_node(op, [nodes[-1].output[0], *operands], [f"y{i}"]))
    return make_model(nodes, inputs, {nodes[-1].output[0]: [None] * (rank + 2)}, numbers)


@st.composite
def convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    ins = draw(st.sampled_from([1, 1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 31, 32]))
    outs = ins if ins < 16 or draw(st.booleans()) else draw(st.integers(8, 33))
    groups = draw(st.integers(2, 44 if ins < 4 else 9 if ins < 9 else 3))
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    kernel = [*(draw(st.integers(1, 4)) for _ in range(rank - 1)), draw(st.sampled_from(WIDTHS))]
    strides = [*(draw(st.integers(1, 3)) for _ in range(rank - 1)), draw(st.integers(1, 2))]
    pads = [draw(st.integers(0, k)) for k in kernel + kernel]
    extra = [8] * (rank - 1) + [40]
    size = [draw(st.integers(max(1, k - pads[i] - pads[rank + i]), k + extra[i])) for i, k in enumerate(kernel)]
    then = draw(
        st.sampled_from([(), ("Relu",), ("Clip",), ("Add", "Relu"), ("Mul", "Add"), ("Clip", "Relu"), ("Mul",)])
    )
    return conv_model(
        groups,
        (ins, outs),
        size,
        kernel,
        batch=draw(st.integers(1, 2)),
        bias=draw(st.booleans()),
        then=then,
        pads=pads,
        strides=strides,
    )


@settings(max_examples=150, deadline=None)
@given(convolutions(), st.sampled_from([1, 2, 3]))
def test_convolutions(proto: onnx.ModelProto, threads: int) -> None:
    check_all_variants(subgraphs_of(proto)[-1], threads)


@pytest.mark.parametrize("per_group", [1, 2, 4, 8, 16])
def test_every_prefix(per_group: int) -> None:
    proto = conv_model(6, (per_group, per_group), [9, 17], [3, 3], then=("Mul", "Add", "Clip"), pads=[1] * 4)
    chains = subgraphs_of(proto)
    assert [len(each.ops) for each in chains] == [1, 2, 3, 4]
    for chain in chains:
        variants = check_all_variants(chain, 2)
        assert {str(each) for each in variants} >= {"blocked", "channels-last"}


def test_foreign_artifacts_are_refused() -> None:
    for artifact in (b"", b"odnn1234", b"frmd\x02\0\0\0{}", b"frmd\xff\xff\0\0{}"):
        with pytest.raises(CollageError, match="no kernel of Collage's own"):
            BACKEND.load(artifact, BuildOptions())


def test_artifacts_of_another_revision_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = subgraphs_of(conv_model(8, (4, 4), [5, 5], [3, 3]))[-1]
    options = BuildOptions(variant=BACKEND.variants(chain, BuildOptions())[0])
    artifact = BACKEND.codegen(chain, options)
    monkeypatch.setattr("collage.native.packed.REVISION", -1)
    with pytest.raises(ModuleFileError, match="compile the model again"):
        BACKEND.load(artifact, options)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("width", range(1, 8))
@pytest.mark.parametrize("per_group", [1, 4, 8, 16, 32])
def test_nan_and_infinity_stay_in_their_group_and_windows(per_group: int, width: int, odd: float) -> None:
    """Of groups that fill parts of vectors; others see their neighbours, times zero."""
    proto = conv_model(3, (per_group, per_group), [5, 21], [3, width], bias=False, pads=[1, width // 2] * 2)
    chain = subgraphs_of(proto)[-1]
    x = np.random.default_rng(0).standard_normal((1, 3 * per_group, 5, 21)).astype(np.float32)
    x[0, per_group, 2, 11] = odd
    (wanted,) = evaluate(chain, [x])
    for variant in BACKEND.variants(chain, BuildOptions(threads=2)):
        (found,) = run_variant(chain, variant, 2, [x])
        assert np.isnan(found[0, per_group : 2 * per_group]).any() or not np.isnan(odd)
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted), err_msg=str(variant))
        seen = np.isinf(wanted)
        np.testing.assert_array_equal(found[seen], wanted[seen], err_msg=str(variant))
