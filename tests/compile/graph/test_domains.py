"""Operators that may make NaN of finite numbers are found, and those that cannot are not."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.frontend.model import from_simplified, import_model
from collage.frontend.rewrite.simplify import simplify
from collage.frontend.session import reference_run
from collage.graph.domains import Domains
from collage.graph.spans import spans
from tests.helpers.models import make_model

N = helper.make_node
ROWS = {"rows": np.array([1], np.int64), "channels": np.array([0], np.int64)}
BAND = np.triu(np.full((4, 4), -math.inf, np.float32), 1)


def numbers(**values: object) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, np.float32) for name, value in values.items()}


def model_of(text: str, weights: dict[str, np.ndarray], **types: int) -> onnx.ModelProto:
    """The model of nodes such as ``y = Add a b``, with semicolons between them. Layer norms have no epsilon."""
    nodes: list[onnx.NodeProto] = []
    for each in text.split("; "):
        output, _, op, *inputs = each.split()
        nodes.append(N(op, inputs, [output], **({"epsilon": 0.0} if op == "LayerNormalization" else {})))
    read = {name for node in nodes for name in node.input} - {name for node in nodes for name in node.output}
    inputs = {name: [4, 4] for name in sorted(read - set(weights) - {""})}
    return make_model(nodes, inputs, {nodes[-1].output[0]: [4, 4]}, weights, types=types)


EPSILON = numbers(eps=1e-5)

LOST = {
    "a quotient": ("q = Div x z; y = Relu q", {}, "divide"),
    "a quotient on a way": ("q = Div x z; n = Neg q; p = MatMul n x; y = Softmax p", {}, "divide"),
    "a root": ("s = Sqrt x; y = Relu s", {}, "sqrt"),
    "a logarithm of 0": ("r = Relu x; l = Log r; y = Relu l", {}, "log"),
    "a norm": ("n = ReduceL2 x rows; q = Div x n; y = Sigmoid q", ROWS, "divide"),
    "a power": ("p = Pow x half; y = Relu p", numbers(half=1.5), "power"),
    "a falling power": ("p = Pow x less; y = Relu p", numbers(less=-2), "power"),
    "an angle": ("a = Acos x; y = Relu a", {}, "acos"),
    "by a relu": ("r = Relu z; q = Div x r; y = Tanh q", {}, "divide"),
    "two masks": (
        "b = Where m zero hidden; a = Add x b; c = Add a band; y = Softmax c",
        numbers(zero=0, hidden=-math.inf, band=BAND),
        "nn.softmax",
    ),
    "a layer norm without epsilon": (
        "n = LayerNormalization x g; y = Relu n",
        numbers(g=np.ones(4)),
        "nn.layer_norm",
    ),
    "a variance that cancels": (
        "xx = Mul x x; m2 = ReduceMean xx rows; m = ReduceMean x rows; mm = Mul m m; "
        "v = Sub m2 mm; s = Sqrt v; r = Relu s; y = Add x r",
        ROWS,
        "sqrt",
    ),
    "rows that are masked": (
        "b = Where m zero hidden; a = Add x b; y = Softmax a",
        numbers(zero=0, hidden=-math.inf),
        "nn.softmax",
    ),
    "a minimum of rows that are masked": (
        "a = Where m x hidden; s = ReduceMin a rows; d = Sub a s; y = Tanh d",
        {**ROWS, **numbers(hidden=math.inf)},
        "subtract",
    ),
    "a product with infinity": ("p = Mul x hidden; y = Relu p", numbers(hidden=-math.inf), "multiply"),
}

KEPT = {
    "a quotient by a constant": ("q = Div x c; y = Relu q", numbers(c=[3, -2, 5, 0.5])),
    "a quotient at the end": ("r = Relu x; y = Div r z", {}),
    "a quotient that is only multiplied": ("n = ReduceL2 x rows; q = Div x n; y = MatMul q z", ROWS),
    "a norm with epsilon": (
        "n = ReduceL2 x rows; e = Max n eps; q = Div x e; y = Relu q",
        {**ROWS, **EPSILON},
    ),
    "a layer norm in single steps": (
        "m = ReduceMean x rows; d = Sub x m; p = Pow d two; "
        "v = ReduceMean p rows; e = Add v eps; s = Sqrt e; q = Div d s; y = Relu q",
        {**ROWS, **EPSILON, **numbers(two=2)},
    ),
    "a softmax in single steps": (
        "m = ReduceMax x rows; d = Sub x m; e = Exp d; s = ReduceSum e rows; q = Div e s; y = Relu q",
        ROWS,
    ),
    "a sigmoid in single steps": (
        "n = Neg x; e = Exp n; d = Add e one; s = Reciprocal d; y = Relu s",
        numbers(one=1),
    ),
    "a power of a sum": (
        "p = Mul x x; e = Add p eps; d = Pow e less; q = Mul x d; y = Relu q",
        {**EPSILON, **numbers(less=-0.75)},
    ),
    "a mask of the least number": (
        "b = Where m zero hidden; a = Add x b; s = Softmax a; y = Relu s",
        numbers(zero=0, hidden=-1e9),
    ),
    "a softplus in single steps": ("e = Exp x; d = Add e one; l = Log d; y = Tanh l", numbers(one=1)),
    "an inverse sigmoid": (
        "c = Clip x low one; o = Sub one c; d = Clip o low one; q = Div c d; l = Log q; y = Sigmoid l",
        numbers(one=1, low=1e-3),
    ),
    "a causal mask": ("a = Add x band; s = Softmax a; y = Relu s", numbers(band=BAND)),
}


def hard_inputs(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Inputs with zeros, equal values, values of both signs, and large ones."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for each in model.graph.input:
        if each.type.tensor_type.elem_type == TensorProto.BOOL:
            found[each.name] = rng.random((4, 4)) < 0.5
            found[each.name][seed % 4] = False
            continue
        x = np.round(rng.standard_normal((4, 4)) * 2).astype(np.float32) / 2
        x[seed % 4] = (0, 1, 1e-20, 1e9)[seed // 4 % 4]
        found[each.name] = x * np.float32((1, 1e-3, 1e4)[seed % 3])
    return found


def run(model: onnx.ModelProto, seed: int) -> np.ndarray:
    """All values of the model's floats in one row."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    kinds = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    made = [name for node in model.graph.node for name in node.output if name in kinds]
    whole.graph.output.extend([*(kinds[name] for name in made), *model.graph.output])
    outputs = reference_run(whole, hard_inputs(model, seed))
    return np.concatenate([np.asarray(each, np.float64).reshape(-1) for each in outputs])


@pytest.mark.parametrize("name", LOST)
def test_what_may_be_lost(name: str) -> None:
    nodes, weights, op = LOST[name]
    model = model_of(nodes, weights, m=TensorProto.BOOL)
    imported = import_model(model)
    found = Domains(imported.graph).lost(imported.graph.nodes)
    assert found is not None
    assert found.op == op
    if "cancels" not in name:  # only some kernels' rounding shows it
        assert any(not np.isfinite(run(model, seed)).all() for seed in range(24))


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name: str) -> None:
    nodes, weights = KEPT[name]
    model = model_of(nodes, weights, m=TensorProto.BOOL)
    imported = import_model(model)
    assert Domains(imported.graph).lost(imported.graph.nodes) is None
    if "quotient" not in name and "mask" not in name and "sigmoid" not in name:
        assert all(not np.isnan(run(model, seed)).any() for seed in range(48))


@pytest.mark.parametrize("name", [*LOST, *KEPT])
def test_values_are_within_their_spans(name: str) -> None:
    nodes, weights = (LOST | KEPT)[name][:2]
    model = model_of(nodes, weights, m=TensorProto.BOOL)
    graph = import_model(model).graph
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    ids = {value.name: value.id for value in graph.values if value.name}
    kinds = onnx.shape_inference.infer_shapes(model).graph.value_info
    whole.graph.output.extend(each for each in kinds if each.name in ids)
    found = spans(graph)
    checked = 0
    for seed in range(24):
        outputs = reference_run(whole, hard_inputs(model, seed))
        for port, array in zip(whole.graph.output, outputs, strict=True):
            span = found[ids[port.name]] if port.name in ids else found[graph.outputs[0]]
            numbers = np.asarray(array, np.float64)
            numbers = numbers[~(np.isnan(numbers) | (np.isinf(numbers) & (span.masked > 0)))]
            least, most = (end - sign * 1e-6 * abs(end) for end, sign in ((span.low, 1), (span.high, -1)))
            assert ((numbers >= least) & (numbers <= most)).all(), (port.name, span)
            checked += numbers.size
    assert checked


def body(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, name, [], [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [64, 64])]
    )


def branch() -> onnx.ModelProto:
    """A quotient in one branch, which is 0 / 0 in a row of zeros, and a relu behind."""
    quotient = body("then", N("ReduceSum", ["x", "rows"], ["s"]), N("Div", ["x", "s"], ["q"]))
    other = body("else", N("Identity", ["x"], ["i"]))
    nodes = [N("If", ["c"], ["d"], then_branch=quotient, else_branch=other), N("Relu", ["d"], ["y"])]
    types = {"c": TensorProto.BOOL}
    return make_model(nodes, {"x": [64, 64], "c": []}, {"y": [64, 64]}, {"rows": ROWS["rows"]}, types=types)


def test_what_a_branch_makes() -> None:
    """A branch may lose within itself what it makes."""
    graph = import_model(branch()).graph
    for nodes in (graph.nodes, graph.nodes[:1]):
        found = Domains(graph).lost(nodes)
        assert found is not None and found.op == "onnx.If"
    assert Domains(graph).lost(graph.nodes[1:]) is None


@pytest.mark.parametrize(
    ("inner", "domain", "kept"), [("Mul", "", True), ("Div", "", False), ("Mul", "other", False)]
)
def test_what_a_loop_makes_is_made_in_its_body(inner: str, domain: str, kept: bool) -> None:
    inside = helper.make_graph(
        [helper.make_node(inner, ["row", "w"], ["made"], domain=domain)],
        "body",
        [helper.make_tensor_value_info("row", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("made", TensorProto.FLOAT, [4])],
    )
    nodes = [N("Scan", ["x"], ["h"], num_scan_inputs=1, body=inside), N("Relu", ["h"], ["y"])]
    proto = make_model(nodes, {"x": [5, 4]}, {"y": [5, 4]}, {"w": np.zeros(4, np.float32)})
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [5, 4]))
    model = from_simplified(proto)
    graph = model.graph
    name = f"{domain}.{inner}" if domain else inner
    assert model.inner_operators == {0: {name}}
    assert graph.nodes[0].op == "onnx.Scan"
    assert (Domains(graph, model.inner_operators).lost(graph.nodes) is None) == kept
    assert Domains(graph).lost(graph.nodes) is not None


def test_an_opaque_quotient() -> None:
    """It is one step, so that only what follows may lose what it makes."""
    model = from_simplified(simplify(model_of(*LOST["a quotient"][:2])), wrong={0: "as a test"})
    nodes = model.graph.nodes
    assert nodes[0].op == "onnx.Div"
    assert Domains(model.graph).lost(nodes[:1]) is None
    assert Domains(model.graph).lost(nodes) == nodes[0]
