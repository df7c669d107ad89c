"""oneDNN kernels in all variants against float64 numpy: pooling, functions of elements, normalisation, concat."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.frontend.subgraph import Subgraph
from tests.backends.onednn_checks import (
    BACKEND,
    LAYOUTS,
    chains_of,
    check_all_variants,
    needs_onednn,
    subgraph_of,
)
from tests.models import make_model

pytestmark = needs_onednn

shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3).flatmap(
    lambda space: st.tuples(
        st.sampled_from([1, 1, 2, 3]), st.sampled_from([1, 3, 16, 17, 48]), *(st.just(n) for n in space)
    )
)


@st.composite
def poolings(draw: st.DrawFn) -> onnx.ModelProto:
    shape = draw(shapes)
    rank = len(shape) - 2
    kernel = [draw(st.integers(1, min(3, n))) for n in shape[2:]]
    attrs: dict[str, object] = {
        "kernel_shape": kernel,
        "strides": [draw(st.integers(1, 3)) for _ in range(rank)],
        "pads": [draw(st.integers(0, (k - 1) // 2)) for k in kernel + kernel],
    }
    name = draw(st.sampled_from(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"]))
    if name.startswith("Global"):
        attrs = {}
    elif name == "MaxPool" or draw(st.booleans()):
        attrs["ceil_mode"] = draw(st.integers(0, 1))
    else:
        attrs["count_include_pad"] = 1
    nodes = [helper.make_node(name, ["x"], ["p"], **attrs)]
    if draw(st.booleans()):
        nodes.append(helper.make_node("Relu", ["p"], ["y"]))
    return make_model(nodes, {"x": shape}, {nodes[-1].output[0]: [None] * len(shape)})


@settings(max_examples=50, deadline=None)
@given(poolings(), st.sampled_from([1, 2, 3]))
def test_pooling(proto: onnx.ModelProto, threads: int) -> None:
    for chain in chains_of(proto):
        check_all_variants(chain, threads, least=0 if "relu" in chain.ops else 1)


def test_counted_padding_ends_with_the_padding() -> None:
    """Whether windows that hang over count what they hang over depends on the framework."""
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}
    node = helper.make_node("AveragePool", ["x"], ["y"], **attrs)
    assert not chains_of(make_model([node], {"x": [1, 8, 5, 5]}, {"y": [1, 8, 3, 3]}))


UNARY = "Relu Tanh Sigmoid Exp Abs Neg Round Softplus Mish Elu HardSwish HardSigmoid LeakyRelu Gelu".split()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", UNARY)
def test_functions(op: str, threads: int) -> None:
    """Whether the importer keeps them or takes them to pieces; after another operator, so that x is a result."""
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node(op, ["a"], ["y"])]
    proto = make_model(nodes, {"x": [2, 17, 5, 7]}, {"y": [2, 17, 5, 7]}, opset=20)
    chain = subgraph_of(proto)
    assert len(chain.model.graph.nodes) == len(chain.nodes)
    assert len(check_all_variants(chain, threads)) >= len(LAYOUTS)


def test_what_may_be_overwritten() -> None:
    """What the functions are applied to, where nothing behind reads it again."""

    def net(*nodes: onnx.NodeProto) -> Subgraph:
        shapes = {"x": [2, 17, 5, 7], "o": [2, 17, 5, 7]}
        return subgraph_of(make_model(nodes, shapes, {nodes[-1].output[0]: [None] * 4}))

    add = helper.make_node("Add", ["x", "o"], ["a"])
    assert BACKEND.in_place(net(add)) == (0,)
    assert BACKEND.in_place(net(add, helper.make_node("Relu", ["a"], ["y"]))) == (0,)
    assert BACKEND.in_place(net(helper.make_node("Relu", ["x"], ["y"]))) == (0,)
    assert BACKEND.in_place(net(add, helper.make_node("Mul", ["a", "x"], ["y"]))) == (1,)
    assert BACKEND.in_place(net(helper.make_node("GlobalAveragePool", ["x"], ["y"]))) == ()


@st.composite
def combinations(draw: st.DrawFn) -> onnx.ModelProto:
    shape = draw(shapes)
    rng = np.random.default_rng(0)
    weights, inputs, nodes, last = {}, {"x": shape}, [], "x"
    for i in range(draw(st.integers(1, 3))):
        op = draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min", "Relu", "Sigmoid"]))
        operands = []
        if op not in ("Relu", "Sigmoid"):
            kind = draw(st.sampled_from(["same", "same", "channel", "scalar", "last"]))
            other = {
                "same": shape,
                "channel": (1, shape[1], *[1] * (len(shape) - 2)),
                "scalar": (),
                "last": shape[-1:],
            }[kind]
            operands = [f"o{i}"]
            if draw(st.booleans()) or op == "Div":
                weights[operands[0]] = np.asarray(rng.uniform(0.5, 2, other), np.float32)
            else:
                inputs[operands[0]] = other
        swap = op != "Div" and draw(st.booleans())
        nodes.append(helper.make_node(op, [*operands, last] if swap else [last, *operands], [f"v{i}"]))
        last = f"v{i}"
    return make_model(nodes, inputs, {last: [None] * len(shape)}, weights)


@settings(max_examples=60, deadline=None)
@given(combinations(), st.sampled_from([1, 2, 3]))
def test_combinations(proto: onnx.ModelProto, threads: int) -> None:
    for chain in chains_of(proto):
        check_all_variants(chain, threads, least=0)


@pytest.mark.parametrize("threads", [1, 2])
def test_batch_normalisation(threads: int) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.uniform(0.5, 2, 32).astype(np.float32) for name in "sbmv"}
    nodes = [
        helper.make_node("BatchNormalization", ["x", *"sbmv"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    proto = make_model(nodes, {"x": [1, 32, 6, 5]}, {"y": [1, 32, 6, 5]}, weights)
    built = check_all_variants(subgraph_of(proto), threads)
    assert {each.outputs[0] for each in built} == LAYOUTS


@settings(max_examples=30, deadline=None)
@given(shapes, st.integers(-1, 1), st.booleans(), st.sampled_from([1, 2, 3]))
def test_normalisation(shape: tuple[int, ...], axis: int, softmax: bool, threads: int) -> None:
    if softmax:
        node = helper.make_node("Softmax", ["x"], ["y"], axis=axis)
        weights = {}
    else:
        rng = np.random.default_rng(0)
        node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], axis=-1)
        weights = {name: rng.standard_normal(shape[-1]).astype(np.float32) for name in "sb"}
    proto = make_model([node], {"x": shape}, {"y": [None] * len(shape)}, weights)
    last = not softmax or math.prod(shape[axis % len(shape) + 1 :]) == 1
    for chain in chains_of(proto):
        check_all_variants(chain, threads, least=int(last))


@settings(max_examples=40, deadline=None)
@given(shapes, st.lists(st.sampled_from([1, 5, 16, 32]), min_size=2, max_size=4), st.data())
def test_concatenation(shape: tuple[int, ...], extents: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    threads = data.draw(st.sampled_from([1, 2, 3]))
    inputs = {f"x{i}": (*shape[:axis], n, *shape[axis + 1 :]) for i, n in enumerate(extents)}
    nodes = [helper.make_node("Concat", list(inputs), ["y"], axis=axis)]
    proto = make_model(nodes, inputs, {"y": [None] * len(shape)})
    assert check_all_variants(subgraph_of(proto), threads)
