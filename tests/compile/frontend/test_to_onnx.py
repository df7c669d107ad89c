"""Numbers stay the same from ONNX to Relax and back: with nodes verbatim, operator by operator, and in two parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from collage.frontend.export.to_onnx import ExportError, can_export, export_onnx
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.testing.onnx_cases import CASES, Array, Case, Feed, normal


@dataclass
class Net:
    """Builds an ONNX model node by node; ``feeds`` are its inputs."""

    opset: int = 18
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    feeds: dict[str, Feed] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Declares float32 values that ONNX's shape inference does not know."""

    def input(self, *shape: int, dtype: str = "float32", low: float = -2.0, high: float = 2.0) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = Feed(shape, dtype, low, high)
        return name

    def weight(self, array: Any, dtype: str | None = None) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array, dtype)
        return name

    def random(self, *shape: int) -> str:
        rng = np.random.default_rng(len(self.weights))
        return self.weight(rng.standard_normal(shape).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.weight(np.array(values, np.int64))

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        return self.ops(op, 1, *inputs, **attrs)[0]

    def ops(self, op: str, count: int, *inputs: str, **attrs: Any) -> list[str]:
        outputs = [f"{op.lower()}_{len(self.nodes)}_{i}" for i in range(count)]
        domain = "com.microsoft" if attrs.pop("contrib", False) else ""
        self.nodes.append(helper.make_node(op, inputs, outputs, outputs[0], domain=domain, **attrs))
        return outputs

    def reduce(self, op: str, x: str, axis: int) -> str:
        return self.op(op, x, axes=[axis]) if self.opset < 18 else self.op(op, x, self.ints(axis))

    def build(self, *outputs: str) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(f.dtype)), f.shape)
            for n, f in self.feeds.items()
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", infos, results, weights)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        for name, shape in self.shapes.items():
            graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return onnx.shape_inference.infer_shapes(made, data_prop=True)


def run(model: onnx.ModelProto, feeds: Sequence[Array], optimise: bool = True) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, {i.name: f for i, f in zip(model.graph.input, feeds, strict=True)})
    return results


def agree(found: Sequence[Array], expected: Sequence[Array]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            finite = np.abs(b[np.isfinite(b)])
            scale = max(1.0, float(finite.max())) if finite.size else 1.0
            loose = 2e-3 if a.dtype.itemsize == 2 else 2e-5
            np.testing.assert_allclose(a, b, rtol=loose, atol=loose * scale)


def whole(model: Model, **options: bool) -> onnx.ModelProto:
    graph = model.graph
    return export_onnx(model, range(len(graph.nodes)), graph.inputs, graph.outputs, **options)


def valid(exported: onnx.ModelProto) -> onnx.ModelProto:
    onnx.checker.check_model(exported, full_check=True)
    return exported


def run_in_two(model: Model, position: int, feeds: Sequence[Array]) -> list[Array]:
    graph = model.graph
    known: dict[int, Array] = dict(graph.constants) | dict(zip(graph.inputs, feeds, strict=True))
    order = tuple(range(len(graph.nodes)))
    for nodes in (order[:position], order[position:]):
        part = Subgraph(model, nodes)
        results = run(valid(part.to_onnx()), [known[v] for v in part.inputs])
        known.update(zip(part.outputs, results, strict=True))
    return [known[v] for v in graph.outputs]


def check(net: Net, *outputs: str, cut: bool = True) -> Model:
    """The promises of this file on one network: verbatim, operator by operator, and cut everywhere."""
    original = net.build(*outputs)
    model = import_model(original)
    rng = np.random.default_rng(7)
    feeds = [feed.draw(rng) for feed in net.feeds.values()]
    expected = run(original, feeds)
    agree(run(valid(whole(model)), feeds), expected)
    lacking = {node.op for node in model.graph.nodes if can_export(model, node.id) is not None}
    if not lacking:
        agree(run(valid(whole(model, verbatim=False)), feeds), expected)
    assert all(op.startswith(("onnx.", "vision.")) for op in lacking), lacking
    if cut:
        for position in range(1, len(model.graph.nodes)):
            agree(run_in_two(model, position, feeds), expected)
    return model


# -- one operator ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", CASES, ids=str)
def test_operator(each: Case) -> None:
    net = Net(each.opset)
    names = []
    for given_input in each.inputs:
        if isinstance(given_input, Feed):
            names.append(f"x{len(net.feeds)}")
            net.feeds[names[-1]] = given_input
        else:
            names.append("" if given_input is None else net.weight(given_input))
    results = net.ops(each.op, each.outputs, *names, **each.attrs)
    model = check(net, *results, cut=len(net.feeds) > 0)
    found = {node.op for node in model.graph.nodes}
    assert all(any(op.startswith(r) for op in found) for r in each.relax.split()), found


# -- networks ----------------------------------------------------------------------------------------------

NETWORKS: dict[str, Callable[[Net], Sequence[str]]] = {}


def network(build: Callable[[Net], Sequence[str]]) -> Callable[[Net], Sequence[str]]:
    NETWORKS[build.__name__] = build
    return build


@network
def convolutions(net: Net) -> Sequence[str]:
    x = net.input(1, 3, 8, 8)
    a = net.op("Conv", x, net.random(4, 3, 3, 3), net.random(4), pads=[1, 1, 1, 1])
    b = net.op("Clip", a, net.weight(0.0, "float32"), net.weight(6.0, "float32"))
    c = net.op("Conv", b, net.random(4, 1, 3, 3), net.random(4), group=4, auto_pad="SAME_UPPER")
    return [net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", net.op("Add", c, b))))]


@network
def dense(net: Net) -> Sequence[str]:
    """The weights of Gemm are transposed and folded on the way: verbatim needs the original ones."""
    x = net.input(3, 4)
    a = net.op("Relu", net.op("Gemm", x, net.random(5, 4), net.random(5), transB=1))
    return [net.op("Gemm", a, net.random(2, 5), transB=1, alpha=0.5), a]


@network
def attention(net: Net) -> Sequence[str]:
    x = net.input(1, 4, 8)
    heads = []
    for axes in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        y = net.op("Add", net.op("MatMul", x, net.random(8, 8)), net.random(8))
        heads.append(net.op("Transpose", net.op("Reshape", y, net.ints(1, 4, 2, 4)), perm=axes))
    scores = net.op("Div", net.op("MatMul", heads[0], heads[1]), net.weight(2.0, "float32"))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), heads[2])
    return [net.op("Reshape", net.op("Transpose", mixed, perm=(0, 2, 1, 3)), net.ints(0, 0, -1))]


@network
def branches(net: Net) -> Sequence[str]:
    x = net.input(2, 6)
    one, two = net.ops("Split", 2, x, *([net.ints(3, 3)] if net.opset >= 13 else []), axis=1)
    both = net.op("Concat", net.op("Sigmoid", two), one, axis=1)
    kept = net.op("Identity", both)
    return [kept, net.op("Sub", kept, x), one]


@network
def recurrent(net: Net) -> Sequence[str]:
    """An operator that TVM cannot convert. Two of its three outputs are read."""
    x = net.input(5, 1, 3)
    scaled = net.op("Mul", x, net.weight(0.5, "float32"))
    outputs = net.ops("LSTM", 3, scaled, net.random(1, 16, 3), net.random(1, 16, 4), hidden_size=4)
    return [net.op("Relu", outputs[0]), outputs[2]]


@network
def conditional(net: Net) -> Sequence[str]:
    """Branches that capture outer values, one through an inner If, with names like our own."""
    x = net.input(2, 3)
    flag = net.input(dtype="bool")
    a, weight = net.op("Abs", x), net.random(3)

    def body(name: str, nodes: list[onnx.NodeProto], result: str) -> onnx.GraphProto:
        info = helper.make_tensor_value_info(result, TensorProto.FLOAT, [2, 3])
        return helper.make_graph(nodes, name, [], [info])

    deep = body("deep", [helper.make_node("Mul", [a, weight], ["v1"])], "v1")
    flat = body("flat", [helper.make_node("Neg", [a], ["v2"])], "v2")
    inner = helper.make_node("If", [flag], ["t1"], then_branch=deep, else_branch=flat)
    then = body("then", [inner, helper.make_node("Add", ["t1", x], ["v0"])], "v0")
    other = body("other", [helper.make_node("Sub", [a, weight], ["k0"])], "k0")
    result = net.op("If", flag, then_branch=then, else_branch=other)
    return [net.op("Tanh", result)]


@network
def contributed(net: Net) -> Sequence[str]:
    """A node of another domain keeps it, and its operator set."""
    x = net.input(2, 4)
    y = net.op("FusedMatMul", net.op("Abs", x), net.random(4, 3), contrib=True, alpha=0.5)
    net.shapes[y] = (2, 3)
    return [net.op("Sqrt", net.op("Abs", y))]


@network
def normalised(net: Net) -> Sequence[str]:
    x = net.input(2, 3, 8)
    mean = net.reduce("ReduceMean", x, -1)
    scaled = net.op("Div", net.op("Sub", x, mean), net.reduce("ReduceL2", x, -1))
    centred = net.op("Add", scaled, net.reduce("ReduceLogSumExp", x, 1))
    square = net.op("Pow", centred, net.weight(2.0, "float32"))
    return [net.op("Mul", net.op("Softplus", square), net.op("Elu", centred))]


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_network_whole_and_cut_anywhere(build: Callable[[Net], Sequence[str]], opset: int) -> None:
    net = Net(opset)
    check(net, *build(net))


@functools.cache
def imported(name: str, opset: int = 18) -> Model:
    net = Net(opset)
    return import_model(net.build(*NETWORKS[name](net)))


# -- what the exported model looks like --------------------------------------------------------------------


def test_outputs_that_no_node_makes_are_copies() -> None:
    model = imported("dense")
    graph = model.graph
    x, constant = graph.inputs[0], next(iter(graph.constants))
    made = graph.nodes[0].outputs[0]
    exported = valid(export_onnx(model, [0], [x], [x, made, made, constant]))
    names = [o.name for o in exported.graph.output]
    assert names == [f"v{x}_out0", f"v{made}", f"v{made}_out2", f"v{constant}_out3"]
    feed = normal(3, 4)
    results = run(exported, [feed])
    np.testing.assert_array_equal(results[0], feed)
    np.testing.assert_array_equal(results[1], results[2])
    np.testing.assert_array_equal(results[3], graph.constants[constant])


def test_a_value_from_inside_an_onnx_node_forces_operators() -> None:
    """The product inside a Gemm is an output, so the Gemm cannot go back whole, though all of it is in the part."""
    model = imported("dense")
    graph = model.graph
    product, total = graph.nodes[0].outputs[0], graph.nodes[1].outputs[0]
    exported = valid(export_onnx(model, [0, 1], graph.inputs, [product, total]))
    assert [n.op_type for n in exported.graph.node] == ["MatMul", "Add"]


def test_a_node_without_a_form_is_named_in_the_error() -> None:
    model = imported("recurrent")
    with pytest.raises(ExportError, match=r"onnx\.LSTM \(lstm_1_0\) has no ONNX form: TVM's importer cannot"):
        whole(model, verbatim=False)
    opaque = next(n.id for n in model.graph.nodes if n.op == "onnx.LSTM")
    assert "only goes back as a whole ONNX node" in str(can_export(model, opaque))
    assert can_export(model, 0) is None


def test_a_value_that_is_neither_given_nor_made_is_an_error() -> None:
    model = imported("dense")
    with pytest.raises(ExportError, match="no input of the part"):
        export_onnx(model, [2], [], model.graph.nodes[2].outputs)
    with pytest.raises(ExportError, match="made outside"):
        export_onnx(model, [0], model.graph.inputs, model.graph.nodes[2].outputs)


# -- random networks ---------------------------------------------------------------------------------------

_SHAPE = (2, 3, 4)
_STEPS: list[Callable[[Net, str, str], str]] = [
    lambda net, a, b: net.op("Relu", a),
    lambda net, a, b: net.op("Tanh", net.op("Mul", a, b)),
    lambda net, a, b: net.op("Add", a, b),
    lambda net, a, b: net.op("Sub", a, b),
    lambda net, a, b: net.op("Max", a, b),
    lambda net, a, b: net.op("Sigmoid", a),
    lambda net, a, b: net.op("Softmax", a, axis=1),
    lambda net, a, b: net.op("Clip", a, net.weight(-1.0, "float32"), net.weight(1.0, "float32")),
    lambda net, a, b: net.op("Sub", a, net.op("ReduceMean", b, net.ints(2), keepdims=1)),
    lambda net, a, b: net.op("Tanh", net.op("MatMul", a, net.random(4, 4))),
    lambda net, a, b: net.op("Concat", *net.ops("Split", 2, a, net.ints(1, 2), axis=1)[::-1], axis=1),
    lambda net, a, b: net.op("Transpose", net.op("Reshape", a, net.ints(3, 4, 2)), perm=[2, 0, 1]),
    lambda net, a, b: net.op(
        "Slice", net.op("Pad", a, net.ints(0, 1, 0, 0, 0, 0)), net.ints(0), net.ints(3), net.ints(1)
    ),
    lambda net, a, b: net.op("Slice", a, net.ints(-1), net.ints(-99), net.ints(2), net.ints(-1)),
    lambda net, a, b: net.op("Where", net.weight([[True], [False], [True]]), a, b),
    lambda net, a, b: net.op("LayerNormalization", a, net.random(4), net.random(4)),
    lambda net, a, b: net.op("Gather", a, net.ints(2, 0, 1), axis=1),
    lambda net, a, b: net.op("CumSum", net.op("Abs", a), net.ints(1), reverse=1),
    lambda net, a, b: net.op("Identity", a),
    lambda net, a, b: net.op("Min", net.op("Expand", net.op("ReduceMax", a, net.ints(1)), net.ints(*_SHAPE)), b),
]


@st.composite
def random_nets(draw: st.DrawFn) -> tuple[Net, list[str]]:
    net = Net()
    values = [net.input(*_SHAPE), net.input(*_SHAPE)]
    for step in draw(st.lists(st.sampled_from(_STEPS), min_size=1, max_size=12)):
        recent = st.sampled_from(values[-4:])
        values.append(step(net, draw(recent), draw(recent)))
    return net, [values[-1], *([values[-2]] if len(values) > 3 else [])]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_nets(), st.data())
def test_random_networks_come_back_with_the_same_numbers(case: tuple[Net, list[str]], data: st.DataObject) -> None:
    net, outputs = case
    original = net.build(*outputs)
    model = import_model(original)
    assert not model.opaque
    rng = np.random.default_rng(1)
    feeds = [feed.draw(rng) for feed in net.feeds.values()]
    expected = run(original, feeds)
    agree(run(valid(whole(model, verbatim=False)), feeds), expected)
    agree(run(valid(whole(model)), feeds), expected)
    if len(model.graph.nodes) > 1:
        agree(run_in_two(model, data.draw(st.integers(1, len(model.graph.nodes) - 1)), feeds), expected)
