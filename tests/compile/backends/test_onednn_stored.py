"""oneDNN's kernels on values that are stored in 8 bits, against exact sums of what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.backends.base import UnsupportedError
from collage.backends.layout import LayoutTransforms
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Node, TensorType
from collage.graph.ranges import Range, shared
from collage.graph.storage import (
    BF16,
    BLOCKED,
    CHANNELS_LAST,
    CHANNELS_LAST_BF16,
    INT8,
    PLAIN,
    PLAIN_BF16,
    STORED_INT8,
    Storage,
    from_layout,
    is_narrow,
    steps_of,
    stored_in_steps,
    stored_type,
    to_layout,
)
from collage.kernel.buffers import aligned_array, aligned_copy, as_bytes, poison
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import reduced_precisions
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.transform import measure_transform
from collage.measure_db.results import Measurement
from collage.native.kernel_library import rounding_problem
from tests.compile.backends.test_onednn_int8 import rounded_weights
from tests.helpers.backends.bf16_checks import convolution, rounded
from tests.helpers.backends.onednn_checks import BACKEND, chains_of, needs_onednn, subgraph_of
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

pytestmark = [needs_onednn, pytest.mark.skipif(bool(rounding_problem()), reason=rounding_problem())]
ALLOWED = frozenset({INT8, BF16})
OF_SUMS = 3e-5
"""The error of float32 sums and of functions, as a part of the largest result."""


def with_ranges(subgraph: Subgraph, inputs: Sequence[np.ndarray], share: float = 1.0) -> Subgraph:
    """The subgraph with the ranges that its inputs and outputs have on these inputs, or a ``share`` of them."""
    arrays = [*inputs, *evaluate(subgraph, [each.astype(np.float64) for each in inputs], {})]
    values = (*subgraph.inputs, *subgraph.outputs)
    found = {
        value: Range(share * float(array.min()), share * float(array.max()))
        for value, array in zip(values, arrays, strict=True)
    }
    return Subgraph(subgraph.model, subgraph.nodes, shared(subgraph.model.graph, found))


def offered(subgraph: Subgraph, threads: int) -> list[Variant]:
    """The variants on stored steps, each once; without ranges all others are offered as before."""
    build = BuildOptions(threads=threads, precisions=ALLOWED)
    without = BACKEND.variants(Subgraph(subgraph.model, subgraph.nodes), build)
    found = BACKEND.variants(subgraph, build)
    assert [each for each in found if each.precision != STORED_INT8] == list(without)
    assert len({*found}) == len(found)
    return [each for each in found if each.precision == STORED_INT8]


def run(subgraph: Subgraph, variant: Variant, threads: int, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The plain output of two runs in a row, which are the same."""
    options = BuildOptions(threads=threads, variant=variant)
    kernel = BACKEND.load(BACKEND.codegen(subgraph, options), options)
    sources = [aligned_copy(to_layout(a, s)) for a, s in zip(inputs, variant.inputs, strict=True)]
    (kind,), (storage,) = subgraph.output_types, variant.outputs
    target = aligned_array(stored_type(kind, storage))
    poison(target)
    call = kernel.bind(sources, [target])
    call()
    first = as_bytes(target).copy()
    call()
    np.testing.assert_array_equal(as_bytes(target), first)
    return from_layout(target, storage, kind)


def as_stored(array: np.ndarray, storage: Storage) -> np.ndarray:
    """What a kernel reads, as numbers."""
    if steps_of(storage) is None:
        return np.asarray(rounded(array) if is_narrow(storage) else array, np.float64)
    kind = TensorType(array.shape, "float32")
    return from_layout(to_layout(array, storage), storage, kind).astype(np.float64)


def wanted(subgraph: Subgraph, variant: Variant, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Exact arithmetic on what is stored, with weights of 8 bits."""
    taken = [as_stored(a, s) for a, s in zip(inputs, variant.inputs, strict=True)]
    graph = subgraph.model.graph
    weights = {
        node.inputs[1]: in_8_bits(node, np.asarray(graph.constants[node.inputs[1]]))
        for node in subgraph.operators
        if node.op.startswith("nn.conv") or node.op == "matmul"
    }
    (found,) = evaluate(subgraph, taken, weights)
    return found


def in_8_bits(node: Node, weights: np.ndarray) -> np.ndarray:
    """The weights as they are multiplied. The output channels of a matrix are its columns."""
    return rounded_weights(weights.T).T if node.op == "matmul" else rounded_weights(weights)


def check(variant: Variant, found: np.ndarray, exact: np.ndarray) -> None:
    """The result is the exact one but for float32 sums, rounded to the next step where it is stored so."""
    (storage,) = variant.outputs
    allowed: Any = OF_SUMS * (np.abs(exact).max() + 1e-3)
    if (steps := steps_of(storage)) is not None:
        exact = np.clip(exact, *(steps.scale * each for each in steps.ends))
        allowed += 0.5001 * steps.scale
    elif is_narrow(storage):
        allowed = allowed + 1.01 * 2.0**-8 * np.abs(exact)
    off = np.abs(found.astype(np.float64) - exact) - allowed
    assert off.max() <= 0, (str(variant), float(off.max()), float(np.abs(exact).max()))


def check_all(
    subgraph: Subgraph, threads: int, inputs: Sequence[np.ndarray], share: float = 1.0
) -> list[Variant]:
    """Every variant that oneDNN has a primitive for computes what the model says."""
    subgraph = with_ranges(subgraph, inputs, share)
    built = []
    for variant in offered(subgraph, threads):
        try:
            found = run(subgraph, variant, threads, inputs)
        except UnsupportedError:
            continue
        check(variant, found, wanted(subgraph, variant, inputs))
        built.append(variant)
    return built


def drawn(subgraph: Subgraph, rng: np.random.Generator, *, positive: bool) -> list[np.ndarray]:
    found = [rng.standard_normal(kind.shape).astype(np.float32) for kind in subgraph.input_types]
    return [np.abs(each) for each in found] if positive else found


def sums(*then: str) -> onnx.ModelProto:
    """A sum of two values, and functions."""
    shape = [1, 32, 6, 5]
    nodes = [helper.make_node("Add", ["x", "r"], ["y0"])]
    for op in then:
        nodes.append(helper.make_node(op, [nodes[-1].output[0]], [f"y{len(nodes)}"]))
    return make_model(nodes, {"x": shape, "r": shape}, {nodes[-1].output[0]: shape}, {})


def joined() -> onnx.ModelProto:
    """A concatenation along the channels."""
    shape = [1, 24, 6, 5]
    node = helper.make_node("Concat", ["x", "r"], ["y"], axis=1)
    return make_model([node], {"x": shape, "r": shape}, {"y": [1, 48, 6, 5]}, {})


def products(*then: str, shape: tuple[int, ...] = (24, 48), columns: int = 64) -> onnx.ModelProto:
    """A product with a constant matrix, its bias, and functions."""
    rng = np.random.default_rng(0)
    numbers = {
        "w": (rng.standard_normal((shape[-1], columns)) / np.sqrt(shape[-1])).astype(np.float32),
        "b": rng.standard_normal(columns).astype(np.float32),
    }
    made = [*shape[:-1], columns]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    inputs = {"x": [*shape]}
    for op in then:
        operands = [nodes[-1].output[0], *(["r"] if op == "Add" else [])]
        inputs |= {"r": made} if op == "Add" else {}
        nodes.append(helper.make_node(op, operands, [f"y{len(nodes)}"]))
    return make_model(nodes, inputs, {nodes[-1].output[0]: made}, numbers)


def maxima(**attrs: Any) -> onnx.ModelProto:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], **attrs)
    return make_model([node], {"x": [1, 32, 9, 9]}, {"y": [1, 32, 5, 5]}, {})


CASES = {
    "3x3": convolution((1, 32, 9, 7), (48, 32, 3, 3), "Relu"),
    "3x3, residual": convolution((1, 32, 9, 9), (32, 32, 3, 3), "Add", "Relu"),
    "residual after a relu": convolution((1, 32, 9, 9), (32, 32, 3, 3), "Relu", "Add"),
    "pixels": convolution((1, 64, 8, 8), (32, 64, 1, 1), "Add", "Relu"),
    "groups": convolution((1, 64, 8, 8), (64, 16, 3, 3), "Relu", group=4),
    "depthwise": convolution((1, 32, 8, 8), (32, 1, 3, 3), "Relu", group=32),
    "batch": convolution((3, 32, 6, 6), (32, 32, 3, 3), "Add", "Relu"),
    "1d": convolution((1, 24, 30), (32, 24, 5), "Sigmoid"),
    "hard swish": convolution((1, 32, 7, 7), (32, 32, 3, 3), "HardSwish"),
    "sum": sums(),
    "sum and relu": sums("Relu"),
    "maximum": maxima(pads=[1, 1, 1, 1]),
    "concatenation": joined(),
    "product": products("Relu"),
    "product of sequences": products("Sigmoid", "Add", shape=(2, 16, 32)),
    "product of one row": products(shape=(1, 64)),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("positive", [True, False], ids=["unsigned", "signed"])
def test_kernels_compute_on_what_is_stored(name: str, threads: int, positive: bool) -> None:
    subgraph = subgraph_of(CASES[name])
    inputs = drawn(subgraph, np.random.default_rng(threads), positive=positive)
    built = check_all(subgraph, threads, inputs)
    ends = {each for variant in built for each in variant.outputs}
    assert any(steps_of(each) is not None for each in ends), built
    if not name.startswith(("sum", "maximum", "concatenation")):
        order = (PLAIN, PLAIN_BF16) if "product" in name else (CHANNELS_LAST, CHANNELS_LAST_BF16)
        assert order[0] in ends
        assert (order[1] in ends) == (BF16 in reduced_precisions())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(5, 40), st.integers(1, 40), st.sampled_from([1, 3]), st.booleans())
def test_any_numbers_of_channels(seed: int, channels: int, outputs: int, taps: int, positive: bool) -> None:
    proto = convolution((1, channels, 6, 5), (outputs, channels, taps, taps), "Relu")
    subgraph = subgraph_of(proto)
    inputs = drawn(subgraph, np.random.default_rng(seed), positive=positive)
    check_all(subgraph, 2, inputs)


@pytest.mark.parametrize("name", ["3x3, residual", "sum", "pixels"])
def test_numbers_beyond_the_range_saturate(name: str) -> None:
    subgraph = subgraph_of(CASES[name])
    inputs = drawn(subgraph, np.random.default_rng(0), positive=False)
    ranged = with_ranges(subgraph, inputs)
    outliers = [1e4 * each for each in inputs]
    stepped = [v for v in offered(ranged, 2) if steps_of(v.outputs[0]) is not None]
    assert stepped
    for variant in stepped:
        steps = steps_of(variant.outputs[0])
        assert steps is not None
        found = run(ranged, variant, 2, outliers)
        check(variant, found, wanted(ranged, variant, outliers))
        assert np.abs(found).max() <= steps.largest
    check_all(subgraph, 2, inputs, share=0.3)


def test_zero_is_zero_and_nan_is_lost() -> None:
    storage = stored_in_steps(CHANNELS_LAST, True, 0.25)
    kind = TensorType((1, 8, 1, 1), "float32")
    given_ = np.array([0, -0.0, np.nan, np.inf, -np.inf, 0.125, -0.3, 1e30], np.float32).reshape(kind.shape)
    kept = from_layout(to_layout(given_, storage), storage, kind).reshape(-1)
    np.testing.assert_array_equal(kept, [0, 0, 0, 31.75, -32, 0, -0.25, 31.75])


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("other", [PLAIN, CHANNELS_LAST, BLOCKED, CHANNELS_LAST_BF16], ids=str)
@pytest.mark.parametrize("shape", [(1, 24, 7, 5), (2, 17, 3), (1, 3, 2, 3, 4)], ids=str)
def test_conversions(shape: tuple[int, ...], other: Storage, signed: bool) -> None:
    maker, build = LayoutTransforms(), BuildOptions(threads=2)
    kind = TensorType(shape, "float32")
    rng = np.random.default_rng(1)
    numbers = (40 * rng.standard_normal(shape)).astype(np.float32)  # some are beyond the steps
    steps = stored_in_steps(CHANNELS_LAST, signed, 0.37)
    for source, target in ((other, steps), (steps, other)):
        transform = LayoutTransform(kind, source, target)
        assert maker.transforms(transform)
        assert isinstance(measure_transform(transform, maker, build, sample_s=0.001), Measurement)
        kernel = maker.load_transform(maker.codegen_transform(transform, build), build)
        taken = aligned_copy(to_layout(numbers, source))
        made = aligned_array(stored_type(kind, target))
        poison(made)
        kernel.bind([taken], [made])()
        plain = from_layout(taken, source, kind)
        expected = to_layout(plain, target)
        if steps_of(target) is None:
            np.testing.assert_array_equal(as_bytes(made), as_bytes(expected))
        else:
            assert np.abs(made.astype(int) - expected.astype(int)).max() <= 1
            assert np.mean(made != expected) < 0.01  # between two steps, rounding may differ


def test_scales_are_left_out_of_what_is_measured() -> None:
    kind = TensorType((1, 8, 4, 4), "float32")
    one, other = (
        LayoutTransform(kind, PLAIN, stored_in_steps(CHANNELS_LAST, False, scale)) for scale in (0.1, 0.2)
    )
    assert one != other
    assert str(one) != str(other)
    assert one.family == other.family == f"plain -> channels-last-u8 of {kind}"
    variants = [Variant((each.target,), (CHANNELS_LAST,), "", STORED_INT8) for each in (one, other)]
    assert variants[0] != variants[1]
    assert variants[0].layout == variants[1].layout == "channels-last-u8 -> channels-last"
    assert repr(variants[0]) != repr(variants[1])


def test_a_range_is_shared_by_what_moves_its_numbers() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[1, 1]),
        helper.make_node("Concat", ["b", "c"], ["y"], axis=1),
    ]
    shape = [1, 8, 4, 4]
    proto = make_model(nodes, {"x": shape, "c": shape}, {"y": [1, 16, 4, 4]}, {})
    model = chains_of(proto)[0].model
    ids = model.onnx_values
    known: Mapping[int, Range] = {ids["x"]: Range(-9, 9), ids["a"]: Range(0, 3), ids["c"]: Range(-1, 2)}
    found = shared(model.graph, known)
    assert found[ids["x"]] == Range(-9, 9)
    assert {found[ids[name]] for name in "abcy"} == {Range(-1, 3)}
