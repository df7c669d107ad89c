"""oneDNN kernels in all variants against float64 numpy: convolutions, products, post-ops, conversions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.backends.chains.attributes import integers
from collage.graph.dataflow import TensorType
from collage.graph.storage import STORAGES, stored_type, to_layout
from tests.backends.onednn_checks import chains_of, check_all_variants, filled, needs_onednn, subgraph_of
from tests.backends.product_models import any_products, transposed_products
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
    for source in STORAGES:
        for target in STORAGES:
            kernel = reorder_kernel(kind, source, target, threads)
            result = filled(np.full(stored_type(kind, target).shape, np.nan, np.float32))
            kernel.bind([filled(to_layout(array, source))], [result])()
            np.testing.assert_array_equal(result, to_layout(array, target))


@settings(max_examples=60, deadline=None)
@given(any_products(), st.sampled_from([1, 2, 3]))
def test_products(proto: onnx.ModelProto, threads: int) -> None:
    for chain in chains_of(proto):
        check_all_variants(chain, threads, least=int(chain.ops == ("matmul",)))


@settings(max_examples=30, deadline=None)
@given(transposed_products(), st.sampled_from([1, 2, 3]))
def test_transposed_operands_and_results(proto: onnx.ModelProto, threads: int) -> None:
    chains = chains_of(proto)
    for chain in chains:
        check_all_variants(chain, threads, least=0 if "add" in chain.ops else 1)
    perm = integers(
        next(node for node in chains[0].model.graph.nodes if node.op == "permute_dims").attrs["axes"]
    )
    assert any("permute_dims" in chain.ops for chain in chains) == (len(perm) - 1 in perm[-2:])


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
