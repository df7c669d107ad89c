"""oneDNN kernels in all variants against float64 numpy: convolutions, products, post-ops, conversions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.graph.dataflow import TensorType
from collage.graph.layout import Layout, stored_type, to_layout
from tests.backends.onednn_checks import chains_of, check_all_variants, filled, needs_onednn, subgraph_of
from tests.models import make_model

pytestmark = needs_onednn


@st.composite
def convolutions(draw: st.DrawFn, transposed: bool = False) -> onnx.ModelProto:
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 8, 17]))
    per_group = st.sampled_from([1, 2, 3, 4, 8, 16, 19])
    ins, outs = draw(per_group), draw(per_group)
    if groups > 3 and draw(st.booleans()):
        ins = outs = 1
    batch = draw(st.sampled_from([1, 1, 2, 3]))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilation = [draw(st.sampled_from([1, 1, 2])) for _ in range(rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    pads = [draw(st.integers(0, r - 1)) for r in reach + reach]
    size = [draw(st.integers(r, r + 7)) for r in reach]
    rng = np.random.default_rng(0)
    shape = (ins * groups, outs) if transposed else (outs * groups, ins)
    weights = {"w": rng.standard_normal((*shape, *kernel)).astype(np.float32)}
    attrs = {"strides": strides, "pads": pads, "dilations": dilation, "group": groups, "kernel_shape": kernel}
    if draw(st.booleans()):
        weights["b"] = rng.standard_normal(outs * groups).astype(np.float32)
    inputs = {"x": [batch, ins * groups, *size]}
    name = "ConvTranspose" if transposed else "Conv"
    nodes = [helper.make_node(name, ["x", *weights], ["c"], **attrs)]
    if draw(st.booleans()):
        nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    output = nodes[-1].output[0]
    return make_model(nodes, inputs, {output: [None] * (rank + 2)}, weights)


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.sampled_from([1, 2, 3]))
def test_convolutions(proto: onnx.ModelProto, threads: int) -> None:
    check_all_variants(subgraph_of(proto), threads)


@settings(max_examples=40, deadline=None)
@given(convolutions(transposed=True), st.sampled_from([1, 2, 3]))
def test_transposed_convolutions(proto: onnx.ModelProto, threads: int) -> None:
    check_all_variants(subgraph_of(proto), threads)


@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (2, 33, 4, 3), (1, 48, 9, 2), (3, 16, 6), (1, 20, 3, 4, 5)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_conversions(shape: tuple[int, ...], threads: int) -> None:
    from collage.backends.onednn_kernels.reorder import reorder_kernel

    kind = TensorType(shape, "float32")
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for source in Layout:
        for target in Layout:
            kernel = reorder_kernel(kind, source, target, threads)
            result = filled(np.full(stored_type(kind, target).shape, np.nan, np.float32))
            kernel.bind([filled(to_layout(array, source))], [result])()
            np.testing.assert_array_equal(result, to_layout(array, target))


@st.composite
def products(draw: st.DrawFn) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    m, k, n = (
        draw(st.integers(1, 40)),
        draw(st.integers(1, 40)),
        draw(st.sampled_from([1, 7, 16, 33, 96, 200])),
    )
    lead = draw(st.sampled_from([(), (1,), (3,), (2, 3), (1, 4)]))
    left, right = (*lead, m, k), (k, n)
    weights, inputs = {"w": rng.standard_normal(right).astype(np.float32)}, {"x": left}
    if draw(st.booleans()):
        right = (*draw(st.sampled_from([(), lead, (1,) * len(lead)])), k, n)
        weights, inputs = {}, {"x": left, "w": right}
    nodes, last = [helper.make_node("MatMul", ["x", "w"], ["p"])], "p"

    def then(op: str, *operands: str) -> None:
        nonlocal last
        nodes.append(helper.make_node(op, [last, *operands], [f"{op}{len(nodes)}"]))
        last = nodes[-1].output[0]

    if draw(st.booleans()):
        shape = draw(st.sampled_from([(n,), (1, n), (m, 1), (m, n), ()]))
        weights["b"] = rng.standard_normal(shape).astype(np.float32)
        then(draw(st.sampled_from(["Add", "Mul"])), "b")
    if draw(st.booleans()):
        then(draw(st.sampled_from(["Relu", "Tanh", "Sigmoid"])))
    if draw(st.booleans()):
        inputs["r"] = draw(st.sampled_from([(n,), (*lead, m, n), (m, n)]))
        then(draw(st.sampled_from(["Add", "Mul", "Sub"])), "r")
    return make_model(nodes, inputs, {last: [None] * (len(lead) + 2)}, weights)


@settings(max_examples=60, deadline=None)
@given(products(), st.sampled_from([1, 2, 3]))
def test_products(proto: onnx.ModelProto, threads: int) -> None:
    for chain in chains_of(proto):
        check_all_variants(chain, threads, least=int(chain.ops == ("matmul",)))


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([(2, 3, 4), (1, 3, 5), (1, 6, 4, 5), (2, 2, 3, 4)]).flatmap(
        lambda shape: st.tuples(*[st.permutations(shape)] * 2, st.permutations(range(len(shape))))
    ),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([(), ("Relu",), ("Add",)]),
)
def test_transposed_operands_and_results(
    drawn: tuple[list[int], list[int], list[int]], threads: int, then: tuple[str, ...]
) -> None:
    """(batch..., M, K) from axes in any order, times a matrix batch that fits, and the result in any order."""
    stored, _, order = drawn
    rank = len(stored)
    left = [stored[axis] for axis in order]
    right = [*left[:-2], left[-1], 7]
    back = sorted(range(rank), key=order.__getitem__)
    nodes = [
        helper.make_node("Transpose", ["x"], ["l"], perm=order),
        helper.make_node("Transpose", ["z"], ["r"], perm=order),
        helper.make_node("MatMul", ["l", "r"], ["p"]),
        *(helper.make_node(op, ["p", "b"] if op == "Add" else ["p"], ["q"]) for op in then),
        helper.make_node("Transpose", ["q" if then else "p"], ["y"], perm=order),
    ]
    weights = {"b": np.arange(7, dtype=np.float32)} if then == ("Add",) else {}
    inputs = {"x": stored, "z": [right[axis] for axis in back]}
    proto = make_model(nodes, inputs, {"y": [None] * rank}, weights)
    chains = chains_of(proto)
    for chain in chains:
        check_all_variants(chain, threads, least=0 if "add" in chain.ops else 1)
    together = rank - 1 in order[-2:]
    assert any("permute_dims" in chain.ops for chain in chains) == together


def gelu(value: str) -> list[onnx.NodeProto]:
    """erf-GELU as exporters write it, from ``value`` to ``y``; needs the constants root, one and half."""
    return [
        helper.make_node("Div", [value, "root"], ["g1"]),
        helper.make_node("Erf", ["g1"], ["g2"]),
        helper.make_node("Add", ["g2", "one"], ["g3"]),
        helper.make_node("Mul", [value, "g3"], ["g4"]),
        helper.make_node("Mul", ["g4", "half"], ["y"]),
    ]


GELU_NUMBERS = {
    "root": np.array(np.sqrt(2), np.float32),
    "one": np.array(1, np.float32),
    "half": np.array(0.5, np.float32),
}


def test_product_bias_gelu() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((32, 96)).astype(np.float32),
        "b": rng.standard_normal(96).astype(np.float32),
        **GELU_NUMBERS,
    }
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["a"])]
    proto = make_model([*nodes, *gelu("a")], {"x": [1, 20, 32]}, {"y": [1, 20, 96]}, weights)
    subgraph = subgraph_of(proto)
    assert "erf" in subgraph.ops
    for threads in (1, 2):
        check_all_variants(subgraph, threads)
