"""oneDNN kernels in all variants against float64 numpy: convolutions, products, functions, pooling, conversions."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.backends.chains.attributes import integers
from collage.backends.onednn_kernels.reorder import reorder_kernel
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import TensorType
from collage.graph.storage import CHANNELS_LAST, PLAIN, STORAGES, stored_type, to_layout
from collage.kernel.buffers import aligned_copy
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from tests.helpers.backends.onednn_checks import (
    BACKEND,
    LAYOUTS,
    chains_of,
    check_all_variants,
    needs_onednn,
    run_variant,
    subgraph_of,
    variants_of,
)
from tests.helpers.backends.product_models import any_products, transposed_products
from tests.helpers.models import make_model
from tests.helpers.reference import evaluate

pytestmark = needs_onednn
RNG = np.random.default_rng(0)


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
    kind = TensorType(shape, "float32")
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for source in STORAGES:
        for target in STORAGES:
            kernel = reorder_kernel(kind, source, target, threads)
            result = aligned_copy(np.full(stored_type(kind, target).shape, np.nan, np.float32))
            kernel.bind([aligned_copy(to_layout(array, source))], [result])()
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
    perm = integers(next(node for node in chains[0].model.graph.nodes if node.op == "permute_dims").attrs["axes"])
    assert any("permute_dims" in chain.ops for chain in chains) == (len(perm) - 1 in perm[-2:])


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


UNARY = "Relu Tanh Sigmoid Exp Abs Neg Round Elu HardSwish HardSigmoid LeakyRelu Gelu".split()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", UNARY)
def test_functions(op: str, threads: int) -> None:
    """Whether the importer keeps them or takes them to pieces; after another operator, so that x is a result."""
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node(op, ["a"], ["y"])]
    proto = make_model(nodes, {"x": [2, 17, 5, 7]}, {"y": [2, 17, 5, 7]}, opset=20)
    chain = subgraph_of(proto)
    assert len(chain.model.graph.nodes) == len(chain.nodes)
    assert len(check_all_variants(chain, threads)) >= len(LAYOUTS)


@pytest.mark.parametrize("op", ["Softplus", "Mish"])
def test_functions_of_negative_numbers_are_exact(op: str) -> None:
    """Parts of Softplus and mish, which are exp(x) and x exp(x) there, have no large relative error."""
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node(op, ["n"], ["y"])]
    model = import_model(make_model(nodes, {"x": [4, 64]}, {"y": [4, 64]}, opset=20))
    x = np.linspace(16, 22, 256, dtype=np.float32).reshape(4, 64)
    values = {model.graph.inputs[0]: x}
    for each in model.graph.nodes:
        alone = Subgraph(model, (each.id,))
        values[each.outputs[0]] = evaluate(alone, [values[value] for value in alone.inputs])[0]
    chains = [
        Subgraph(model, match.nodes)
        for source in BACKEND.sources(BuildOptions())
        for match in source.find(MatchContext(model))
        if not match.reason
    ]
    assert chains
    for chain in chains:
        inputs = [values[value].astype(np.float32) for value in chain.inputs]
        (exact,) = evaluate(chain, inputs)
        for variant in variants_of(chain, 1):
            (found,), _ = run_variant(chain, variant, 1, inputs)
            np.testing.assert_allclose(found, exact, rtol=1e-5, err_msg=str(chain))


COMBINED = [
    *((shape, shape) for shape in ((2, 17, 5, 7), (1, 16, 4, 5, 3), (1, 16, 1, 9), (2, 1, 5, 7), (2, 5, 11))),
    ((3, 16, 5, 7), (1, 16, 5, 7)),
    ((2, 1, 5, 7), (1, 1, 5, 7)),
    ((1, 16, 2, 7), (1, 16, 1, 7)),
    ((1, 17, 5, 7), (1, 1, 5, 7)),
    ((3, 16, 5, 7), (1, 16, 1, 1)),
    ((1, 16, 2, 1), (1, 16, 1, 1)),
    ((1, 17, 2, 3), (1, 17, 2, 1)),
]


@pytest.mark.parametrize(("shape", "operand"), COMBINED)
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_poolings_combined_with_a_tensor(pool: str, shape: tuple[int, ...], operand: tuple[int, ...]) -> None:
    """oneDNN misreads a tensor that has the shape of one thread's share. Such variants are not offered."""
    kernel = [3 if extent >= 3 else 1 for extent in shape[2:]]
    pads = [(extent - 1) // 2 for extent in kernel]
    nodes = [
        helper.make_node(pool, ["x"], ["p"], kernel_shape=kernel, pads=[*pads, *pads]),
        helper.make_node("Mul", ["p", "o"], ["y"]),
    ]
    chain = subgraph_of(make_model(nodes, {"x": shape, "o": operand}, {"y": [None] * len(shape)}))
    assert len(chain.nodes) == 2
    for threads in (1, 2, 3):
        check_all_variants(chain, threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ops", [("Sub",), ("Sub", "Div"), ("Abs", "Add"), ("Add", "Mul", "Sigmoid")])
@pytest.mark.parametrize("constant", [False, True])
def test_single_numbers_without_axes(ops: tuple[str, ...], constant: bool, threads: int) -> None:
    last, inputs, weights, nodes = "x", {"x": ()}, {}, []
    for place, op in enumerate(ops):
        operands = [] if op in ("Abs", "Sigmoid") else [f"o{place}"]
        weights.update(dict.fromkeys(operands if constant else [], np.array(1.5, np.float32)))
        inputs.update(dict.fromkeys([] if constant else operands, ()))
        nodes.append(helper.make_node(op, [last, *operands], [f"v{place}"]))
        last = f"v{place}"
    chain = subgraph_of(make_model(nodes, inputs, {last: ()}, weights))
    assert len(chain.nodes) == len(ops)
    check_all_variants(chain, threads)


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


def point_conv(channels: int, out: int, batch: int = 1) -> onnx.ModelProto:
    """A pointwise convolution of one position."""
    weights = {"w": RNG.standard_normal((out, channels, 1, 1)).astype(np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    return make_model([node], {"x": [batch, channels, 1, 1]}, {"y": [batch, out, 1, 1]}, weights)


def squeezed(op: str) -> onnx.ModelProto:
    """A convolution or a pooling with functions and a squeeze behind it, as voice-activity detectors end."""
    first = {
        "points": helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        "columns": helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        "pool": helper.make_node("MaxPool", ["x"], ["c"], kernel_shape=[2], strides=[1]),
        "far pool": helper.make_node("MaxPool", ["x"], ["c"], kernel_shape=[8], strides=[1]),
    }[op]
    length, after = {"points": (1, 1), "columns": (8, 8), "pool": (8, 7), "far pool": (8, 1)}[op]
    channels = 24 if "pool" in op else 1
    weights = {
        "w": RNG.standard_normal((1, 24, 1)).astype(np.float32),
        "b": np.array([0.5], np.float32),
        "shape": np.array([channels * after]),
    }
    nodes = [
        first,
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Reshape", ["s", "shape"], ["y"]),
    ]
    return make_model(nodes, {"x": [1, 24, length]}, {"y": [channels * after]}, weights)


@pytest.mark.parametrize("batch", [1, 3])
def test_what_was_made_before_changes_no_kernel(batch: int) -> None:
    subgraph = subgraph_of(point_conv(144, 48, batch))
    inputs = [RNG.standard_normal((batch, 144, 1, 1)).astype(np.float32)]
    (plain,) = {v for v in variants_of(subgraph, 1) if v.outputs == (PLAIN,)}
    (last,) = {v for v in variants_of(subgraph, 1) if v.outputs == (CHANNELS_LAST,)}
    first = BACKEND.codegen(subgraph, BuildOptions(threads=1, variant=plain))
    run_variant(subgraph, last, 1, inputs)  # its primitive is in oneDNN's cache from now on
    assert BACKEND.codegen(subgraph, BuildOptions(threads=1, variant=plain)) == first
    (found,), _ = run_variant(subgraph, plain, 1, inputs)
    weights = next(iter(subgraph.weights.values()))
    np.testing.assert_allclose(found, np.einsum("nchw,ocuv->nohw", inputs[0], weights), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", ["points", "columns", "pool", "far pool"])
def test_a_reshaped_result_is_offered_in_the_plain_layout_only(op: str, threads: int) -> None:
    viewed = [each for each in chains_of(squeezed(op)) if "reshape" in each.ops]
    for subgraph in viewed:
        variants = variants_of(subgraph, threads)
        assert {v.outputs for v in variants} <= {(PLAIN,)}
        if variants:
            assert check_all_variants(subgraph, threads) == list(variants)
    # A plain convolution of several positions has no quick functions behind it, one of a single position has.
    assert any(variants_of(each, threads) for each in viewed if each.ops[0] != "sigmoid") == (op != "columns")
