"""oneDNN's convolutions of float data in 8 bits, against exact sums of what the kernels should have rounded to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.backends.base import UnsupportedError
from collage.backends.onednn_kernels import int8_conv
from collage.backends.onednn_kernels.artifact import from_artifact, to_bytes
from collage.backends.onednn_kernels.kernel import load
from collage.errors import CollageError
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import (
    BF16,
    BLOCKED,
    BLOCKED_BF16,
    CHANNELS_LAST,
    CHANNELS_LAST_BF16,
    INT8,
    Storage,
    is_narrow,
)
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import reduced_precisions
from collage.native.kernel_library import rounding_problem
from tests.helpers.backends.bf16_checks import check, convolution, rounded, run
from tests.helpers.backends.onednn_checks import BACKEND, needs_onednn, subgraph_of
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

pytestmark = [needs_onednn, pytest.mark.skipif(bool(rounding_problem()), reason=rounding_problem())]
ALLOWED = frozenset({INT8})
FLOATS: set[Storage] = {CHANNELS_LAST, BLOCKED}
NARROW: set[Storage] = {CHANNELS_LAST_BF16, BLOCKED_BF16} if BF16 in reduced_precisions() else set()


def offered(subgraph: Subgraph, threads: int) -> list[Variant]:
    """The variants in 8 bits, each once; without the permission all others are offered as before."""
    exact = BACKEND.variants(subgraph, BuildOptions(threads=threads))
    found = BACKEND.variants(subgraph, BuildOptions(threads=threads, precisions=ALLOWED))
    assert [each for each in found if not each.precision] == list(exact)
    assert len({*found}) == len(found)
    return [each for each in found if each.precision]


def rounded_data(x: np.ndarray, groups: int) -> np.ndarray:
    """The channels of each group of an item in 255 steps, from their least to their largest number, or zero."""
    single = np.asarray(x, np.float32)
    whole = single.reshape(len(x), groups, -1)
    low = np.minimum(whole.min(-1, keepdims=True), 0)
    high = np.maximum(whole.max(-1, keepdims=True), 0)
    scale = np.maximum(high / np.float32(255) - low / np.float32(255), np.finfo(np.float32).tiny)
    inverse = np.float32(1) / scale
    zero = np.minimum(np.rint(-low * inverse), 255)
    steps = np.clip(np.rint(whole * inverse) + zero, 0, 255)
    return np.asarray((steps - zero).astype(np.float64) * scale).reshape(x.shape)


def rounded_weights(weights: np.ndarray) -> np.ndarray:
    """Whole numbers from -127 to 127 times the largest magnitude of the output channel, which is the first axis."""
    flat = weights.reshape(len(weights), -1)
    scale = np.abs(flat).max(1, keepdims=True) / np.float32(127)
    steps = np.rint(flat / np.where(scale > 0, scale, 1).astype(np.float64))
    return np.asarray(steps * scale.astype(np.float64)).reshape(weights.shape)


def wanted(subgraph: Subgraph, variant: Variant, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Exact arithmetic on rounded data and weights; what else is stored as bfloat16 is rounded so."""
    root = subgraph.operators[0]
    groups: Any = root.attrs["groups"]
    data, weights = root.inputs[:2]
    taken = [rounded(a) if is_narrow(s) else a.astype(np.float64) for a, s in zip(inputs, variant.inputs, strict=True)]
    numbers = np.asarray(subgraph.model.graph.constants[weights])
    place = subgraph.inputs.index(data)
    taken[place] = rounded_data(taken[place], groups)
    return evaluate(subgraph, taken, {weights: rounded_weights(numbers)})


def check_all(
    subgraph: Subgraph, threads: int, inputs: Sequence[np.ndarray] | None = None, *, least: int = 1
) -> list[Variant]:
    """Every variant that oneDNN has a primitive for computes what the model says; those, at least ``least``."""
    rng = np.random.default_rng(0)
    if inputs is None:
        inputs = [rng.standard_normal(kind.shape).astype(np.float32) for kind in subgraph.input_types]
    built = []
    for variant in offered(subgraph, threads):
        try:
            found = run(BACKEND, subgraph, variant, threads, inputs)
        except UnsupportedError:
            continue
        check(variant, found, wanted(subgraph, variant, inputs))
        built.append(variant)
    assert len(built) >= least, offered(subgraph, threads)
    return built


CASES = {
    "3x3": convolution((1, 32, 9, 7), (48, 32, 3, 3), "Relu"),
    "batch": convolution((3, 32, 6, 6), (32, 32, 3, 3), "Add", "Relu"),
    "groups": convolution((1, 64, 8, 8), (64, 16, 3, 3), "Relu", group=4),
    "1d": convolution((1, 24, 30), (32, 24, 5), "Sigmoid"),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, threads: int) -> None:
    built = check_all(subgraph_of(CASES[name]), threads)
    assert {each.inputs[0] for each in built} == FLOATS | NARROW
    assert {each.outputs[0] for each in built} == {CHANNELS_LAST, *NARROW & {CHANNELS_LAST_BF16}}
    assert all(is_narrow(each.inputs[0]) == is_narrow(each.outputs[0]) for each in built)
    assert {each.precision for each in built} == {INT8}


@st.composite
def random_convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    """Of any rank, with windows, strides, dilations, uneven pads and groups, and with what may follow."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    groups = draw(st.sampled_from([1, 1, 2, 4]))
    ins, outs = (groups * draw(st.sampled_from([4, 5, 8, 16, 20])) for _ in range(2))
    window, strides, gaps, pads = each(1, 4), each(1, 3), each(1, 2), each(0, 2, 2 * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(window, gaps, strict=True)]
    extents = [r + extra for r, extra in zip(reach, each(0, 7), strict=True)]
    items = draw(st.sampled_from([1, 1, 2, 5]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    weights = rng.standard_normal((outs, ins // groups, *window)) / np.sqrt(ins // groups * np.prod(window))
    numbers = {"w": weights.astype(np.float32), "b": rng.standard_normal(outs).astype(np.float32)}
    attrs = {"strides": strides, "dilations": gaps, "pads": pads, "group": groups}
    bias = ["b"] if draw(st.booleans()) else []
    nodes = [helper.make_node("Conv", ["x", "w", *bias], ["y0"], **attrs)]
    out = [
        (n + a + b - r) // s + 1
        for n, a, b, r, s in zip(extents, pads[:rank], pads[rank:], reach, strides, strict=True)
    ]
    inputs, value = {"x": [items, ins, *extents]}, "y0"
    for op in draw(st.sampled_from([(), ("Relu",), ("Add", "Relu"), ("Sigmoid",), ("Gate",), ("Relu", "Add")])):
        operands = [value]
        if op == "Add":
            inputs["r"] = [items, outs, *out]
            operands.append("r")
        elif op == "Gate":  # a factor for each item and channel
            inputs["g"] = [items, outs, *[1] * rank]
            operands.append("g")
        value = f"y{len(nodes)}"
        nodes.append(helper.make_node({"Gate": "Mul"}.get(op, op), operands, [value]))
    return make_model(nodes, inputs, {value: [items, outs, *out]}, numbers)


@settings(max_examples=60, deadline=None)
@given(random_convolutions(), st.sampled_from([1, 2, 3]))
def test_random_convolutions(proto: onnx.ModelProto, threads: int) -> None:
    check_all(subgraph_of(proto), threads, least=0)


def test_items_and_groups_have_ranges_of_their_own() -> None:
    """Outliers and one-sided data: what is beside them is as exact as it is alone, and nothing is clipped."""
    chain = subgraph_of(convolution((4, 32, 6, 6), (32, 16, 3, 3), group=2))
    x = np.random.default_rng(1).standard_normal((4, 32, 6, 6)).astype(np.float32)
    x[0, :16] *= 1e6
    x[1, 3, 2, 2] = 1e4
    x[2] = np.abs(x[2])
    x[3] = -np.abs(x[3])
    check_all(chain, 2, [x])
    exact = evaluate(chain, [x])[0]
    for variant in (each for each in offered(chain, 2) if not is_narrow(each.inputs[0])):
        (y,) = run(BACKEND, chain, variant, 2, [x])
        off = np.abs(y - exact).reshape(4, 2, -1).max(-1) / np.abs(exact).reshape(4, 2, -1).max(-1)
        assert off.max() < 0.03


@pytest.mark.parametrize("threads", [1, 2])
def test_tiny_huge_and_odd_items(threads: int) -> None:
    chain = subgraph_of(convolution((7, 16, 5, 5), (32, 16, 3, 3)))
    x = np.random.default_rng(2).standard_normal((7, 16, 5, 5)).astype(np.float32)
    x[1] *= 1e-40
    x[2] *= np.float32(1e34)
    x[3, 5, 1, 2], x[4, 0, 0, 0], x[5, 15, 4, 4] = np.nan, np.inf, -np.inf
    x[6] = 0
    usual = x.copy()
    usual[3:6] = 0
    bias = np.asarray(next(a for a in chain.model.graph.constants.values() if a.size == 32)).reshape(1, 32, 1, 1)
    for variant in offered(chain, threads):
        with np.errstate(all="ignore"):
            (y,) = run(BACKEND, chain, variant, threads, [x])
        (model,) = wanted(chain, variant, [usual])
        assert np.isnan(y[3:6]).all()
        np.testing.assert_allclose(y[[1, 6]], np.broadcast_to(bias, (2, 32, 5, 5)), rtol=5e-3)
        for item in (0, 2):
            assert np.abs(y[item] - model[item]).max() <= 5e-3 * np.abs(model[item]).max(), (
                item,
                str(variant),
            )


def test_odd_numbers_are_found_wherever_they_are() -> None:
    """In any share of the pixels, and in any channel, also of the last vector."""
    chain = subgraph_of(convolution((1, 20, 6, 6), (16, 20, 3, 3)))
    (variant, *_) = offered(chain, 2)
    for channel, row in ((0, 0), (19, 5), (15, 3), (16, 2)):
        x = np.ones((1, 20, 6, 6), np.float32)
        x[0, channel, row, row] = np.nan
        (y,) = run(BACKEND, chain, variant, 2, [x])
        assert np.isnan(y).all()


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_longest_sums_do_not_overflow(sign: int) -> None:
    def sum_of(channels: int) -> onnx.ModelProto:
        weights = {"w": np.full((16, channels, 4, 4), sign, np.float32)}
        conv = helper.make_node("Conv", ["x", "w"], ["y"])
        return make_model([conv], {"x": [1, channels, 4, 5]}, {"y": [1, 16, 1, 2]}, weights)

    x = np.ones((1, 4096, 4, 5), np.float32)
    chain = subgraph_of(sum_of(4096))
    variants = offered(chain, 1)
    assert variants
    for variant in variants:
        for data in (x, -x):
            (y,) = run(BACKEND, chain, variant, 1, [data])
            np.testing.assert_allclose(y, np.full_like(y, sign * 65536 * data[0, 0, 0, 0]), rtol=1e-2)
    assert not offered(subgraph_of(sum_of(4097)), 1)


def test_what_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = subgraph_of(CASES["3x3"])
    assert offered(chain, 2)
    assert not offered(subgraph_of(convolution((1, 32, 9, 9), (32, 32, 1, 1))), 2)  # our own kernels take these
    assert not offered(subgraph_of(convolution((1, 3, 9, 9), (32, 3, 3, 3))), 2)
    assert {each.split for each in offered(chain, 2)} == {"rows", ""}
    assert {each.split for each in offered(subgraph_of(CASES["batch"]), 2)} == {"batch", ""}
    assert {each.split for each in offered(chain, 1)} == {""}
    monkeypatch.setattr(int8_conv, "rounding_problem", lambda: "nothing is there")
    assert not offered(chain, 2)
    with pytest.raises(UnsupportedError, match="nothing is there"):
        BACKEND.codegen(chain, BuildOptions(variant=Variant((CHANNELS_LAST,), (CHANNELS_LAST,), "", INT8)))


def test_damaged_artifacts_are_refused() -> None:
    chain = subgraph_of(CASES["batch"])
    options = BuildOptions(threads=2, variant=offered(chain, 2)[0])
    artifact = from_artifact(BACKEND.codegen(chain, options))
    rounding = artifact.rounding
    assert rounding is not None
    changes: list[dict[str, Any]] = [
        {"data": 7},
        {"items": 0},
        {"items": 4},
        {"channels": 33},
        {"channels": 64},
        {"groups": 3},
        {"outputs": 1 << 20},
        {"outputs": 16},
        {"extents": (1, 6, 7)},
        {"begin": (0, -1, 1)},
        {"padded": (1, 6, 6)},
        {"padded": (1, 1 << 41, 8)},
        {"padded": (1, 1 << 20, 8)},
        {"constants": (0, 1, 99)},
        {"constants": (-1, 1, 2)},
        {"sliced": (9,)},
        {"shares": 3},
        {"shares": 0},
    ]
    shapes = [(3, 6, 6, 32), (3, 6, 6, 32), (3, 6, 6, 32)]
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    for change in changes:
        damaged = to_bytes(replace(artifact, rounding=replace(rounding, **change)))
        with pytest.raises((CollageError, ValueError)):
            load(damaged, 2).bind(arrays[:2], arrays[2:])
    load(to_bytes(artifact), 2).bind(arrays[:2], arrays[2:])
