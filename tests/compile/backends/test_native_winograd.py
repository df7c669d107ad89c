"""Winograd convolutions in all variants, on random shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from tests.helpers.backends.native_checks import BACKEND, needs_native, run_variant, subgraphs_of
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

pytestmark = needs_native


def conv_model(
    channels: tuple[int, int],
    size: list[int],
    kernel: list[int],
    *,
    batch: int = 1,
    bias: bool = True,
    then: tuple[str, ...] = (),
    **attrs: Any,
) -> onnx.ModelProto:
    """A convolution, and then Relu, Clip, or Add (of an input)."""
    rng = np.random.default_rng(0)
    ins, outs = channels
    rank = len(size)
    group = attrs.get("group", 1)
    weights = rng.standard_normal((outs, ins // group, *kernel)) / np.sqrt(ins // group * np.prod(kernel))
    numbers = {"w": weights.astype(np.float32)}
    if bias:
        numbers["b"] = rng.standard_normal(outs).astype(np.float32)
    inputs: dict[str, list[int]] = {"x": [batch, ins, *size]}
    pads, strides = attrs.get("pads", [0] * 2 * rank), attrs.get("strides", [1] * rank)
    spread = [(k - 1) * d for k, d in zip(kernel, attrs.get("dilations", [1] * rank), strict=True)]
    out = [(n + pads[i] + pads[rank + i] - spread[i] - 1) // strides[i] + 1 for i, n in enumerate(size)]
    nodes = [helper.make_node("Conv", ["x", *numbers], ["y"], kernel_shape=kernel, **attrs)]
    for i, op in enumerate(then):
        operands = {"Clip": ["low", "high"], "Add": [f"r{i}"]}.get(op, [])
        if op == "Clip":
            numbers |= {"low": np.array(-0.5, np.float32), "high": np.array(1.5, np.float32)}
        if op == "Add":
            inputs[f"r{i}"] = [batch, outs, *out]
        nodes.append(helper.make_node(op, [nodes[-1].output[0], *operands], [f"y{i}"]))
    return make_model(nodes, inputs, {nodes[-1].output[0]: [None] * (rank + 2)}, numbers)


@st.composite
def convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    blocks = st.integers(1, 3)
    kernel = [*draw(st.sampled_from([[], [], [3], [3], [1], [2]])), 3, 3]
    pads = [draw(st.integers(0, k - 1)) for k in kernel + kernel]
    rank, largest = len(kernel), [5, 14, 14]
    size = [draw(st.integers(max(1, k - pads[i] - pads[rank + i]), largest[i - rank])) for i, k in enumerate(kernel)]
    return conv_model(
        (16 * draw(blocks), 16 * draw(blocks)),
        size,
        kernel,
        batch=draw(st.integers(1, 2)),
        bias=draw(st.booleans()),
        then=draw(st.sampled_from([(), ("Relu",), ("Clip",), ("Add",), ("Add", "Relu"), ("Clip", "Relu")])),
        pads=pads,
    )


def transposed_model(
    channels: tuple[int, int], size: list[int], *, batch: int = 1, then: tuple[str, ...] = (), **attrs: Any
) -> onnx.ModelProto:
    """A transposed convolution with a window of 4x4 at distances of 2, and then Relu or Add (of an input)."""
    rng = np.random.default_rng(0)
    ins, outs = channels
    weights = rng.standard_normal((ins, outs, 4, 4)) / np.sqrt(4 * ins)
    numbers = {"w": weights.astype(np.float32), "b": rng.standard_normal(outs).astype(np.float32)}
    pads, extra = attrs.get("pads", [0] * 4), attrs.get("output_padding", [0, 0])
    inputs = {"x": [batch, ins, *size]}
    out = [2 * (n - 1) + 4 - pads[i] - pads[i + 2] + extra[i] for i, n in enumerate(size)]
    attrs = {"kernel_shape": [4, 4], "strides": [2, 2], **attrs}
    nodes = [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attrs)]
    for op in then:
        if op == "Add":
            inputs["r"] = [batch, outs, *out]
        nodes.append(helper.make_node(op, [nodes[-1].output[0], *["r"] * (op == "Add")], [f"y{len(nodes)}"]))
    return make_model(nodes, inputs, {nodes[-1].output[0]: [None] * 4}, numbers)


@st.composite
def transposed_convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    blocks = st.integers(1, 3)
    return transposed_model(
        (16 * draw(blocks), 16 * draw(blocks)),
        [draw(st.integers(2, 9)), draw(st.integers(2, 9))],
        batch=draw(st.integers(1, 2)),
        then=draw(st.sampled_from([(), ("Relu",), ("Add",), ("Add", "Relu")])),
        pads=[draw(st.integers(0, 2)) for _ in range(4)],
        output_padding=[draw(st.integers(0, 1)), draw(st.integers(0, 1))],
    )


def check(subgraph: Subgraph, threads: int, tolerance: float = 2e-5) -> set[str]:
    """The variants' names; each one computes the right thing."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in subgraph.input_types]
    (wanted,) = evaluate(subgraph, inputs)
    variants = BACKEND.variants(subgraph, BuildOptions(threads=threads))
    assert variants
    for variant in variants:
        (found,) = run_variant(subgraph, variant, threads, inputs)
        scale = np.abs(wanted).max() + 1e-3
        np.testing.assert_allclose(found / scale, wanted / scale, atol=tolerance, err_msg=str(variant))
    return {variant.split for variant in variants}


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.sampled_from([1, 2, 3]))
def test_convolutions(proto: onnx.ModelProto, threads: int) -> None:
    check(subgraphs_of(proto)[-1], threads)


@settings(max_examples=40, deadline=None)
@given(transposed_convolutions(), st.sampled_from([1, 2, 3]))
def test_transposed_convolutions(proto: onnx.ModelProto, threads: int) -> None:
    check(subgraphs_of(proto)[-1], threads)


def test_variants() -> None:
    chain = subgraphs_of(conv_model((64, 64), [28, 28], [3, 3], pads=[1] * 4))[-1]
    assert check(chain, 1) == {"winograd 4x4"}
    assert check(chain, 2) == {"winograd 4x4, tiles", "winograd 4x4, output channels", "winograd 4x4"}
    few = subgraphs_of(conv_model((64, 64), [6, 6], [3, 3], pads=[1] * 4))[-1]
    assert check(few, 1) == {"winograd 2x2", "winograd 4x4"}


def test_many_chunks_of_tiles_and_planes() -> None:
    check(subgraphs_of(conv_model((48, 112), [11, 21, 23], [3, 3, 3], pads=[1] * 6))[-1], 2)


def test_taps_that_see_only_padding_are_left_out() -> None:
    proto = conv_model((32, 32), [1, 8, 8], [3, 3, 3], pads=[1] * 6)
    check(subgraphs_of(proto)[-1], 2)
    variant, *_ = BACKEND.variants(subgraphs_of(proto)[-1], BuildOptions())
    artifact = BACKEND.codegen(subgraphs_of(proto)[-1], BuildOptions(variant=variant))
    assert len(artifact) < 4 * 36 * 32 * 32 + 2000


@pytest.mark.parametrize(("planes", "pads"), [(1, (3, 3)), (1, (0, 6)), (1, (6, 1)), (2, (5, 5))])
def test_chunks_of_planes_that_see_nothing_but_padding(planes: int, pads: tuple[int, int]) -> None:
    """Their results are the bias. The next panel of weights is fetched in other chunks only."""
    around = [pads[0], 1, 1, pads[1], 1, 1]
    chain = subgraphs_of(conv_model((32, 48), [planes, 8, 8], [3, 3, 3], pads=around, then=("Add", "Relu")))
    assert "winograd 4x4" in check(chain[-1], 1)
    check(chain[-1], 2)


def test_the_error_is_within_the_tolerance_of_measurements_for_many_channels() -> None:
    check(subgraphs_of(conv_model((512, 32), [3, 8, 8], [3, 3, 3], pads=[1] * 6))[-1], 2)
    check(subgraphs_of(transposed_model((512, 32), [8, 8], pads=[1] * 4))[-1], 2)
