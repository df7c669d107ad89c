"""Models in float16 stay float16 where they are folded for a GPU, and compute the same as before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.frontend.model import Model, import_model
from collage.frontend.rewrite.simplify import simplify
from scripts.lib.gpu.half import in_half
from tests.compile.frontend.test_to_onnx import Net, run

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


def cast(net: Net, value: str, to: int) -> str:
    return net.op("Cast", value, to=to)


def layers(net: Net, value: str) -> str:
    """Operators that ONNX Runtime has no kernels of float16 for, one of which is a function, and one that is folded."""
    value = net.op("Conv", value, net.random(6, 4, 3, 3), net.random(6))
    statistics = (net.random(6), net.random(6), net.random(6), net.weight(np.linspace(0.5, 2, 6), "float32"))
    value = net.op("Relu", net.op("BatchNormalization", value, *statistics))
    value = net.op("Reshape", value, net.ints(6, 36))
    return net.op("Gelu", net.op("Add", net.op("MatMul", value, net.random(36, 8)), net.random(8)))


def plain(net: Net) -> onnx.ModelProto:
    """All of it in float16."""
    return in_half(net.build(net.op("Softmax", layers(net, net.input(1, 4, 8, 8)), axis=-1)))


def float_ends(net: Net) -> onnx.ModelProto:
    """Inputs and outputs in float32, as converters make them."""
    value = layers(net, cast(net, net.input(1, 4, 8, 8), HALF))
    return _with_ends(net.build(cast(net, value, FLOAT)), FLOAT)


def float_inside(net: Net) -> onnx.ModelProto:
    """A softmax in float32 between casts, and a sum of both types."""
    value = layers(net, net.input(1, 4, 8, 8))
    inside = net.op("Softmax", cast(net, value, FLOAT), axis=-1)
    value = net.op("Mul", cast(net, inside, HALF), value)
    return in_half(net.build(net.op("MatMul", value, net.random(8, 3))))


def two_readers(net: Net) -> onnx.ModelProto:
    """A value that is read as it is, and as float32, which is an output."""
    value = net.op("Tanh", layers(net, net.input(1, 4, 8, 8)))
    wide = net.op("Exp", cast(net, value, FLOAT))
    made = in_half(net.build(net.op("Sigmoid", value), wide))
    made.graph.output[1].type.tensor_type.elem_type = FLOAT
    return made


def resized(net: Net) -> onnx.ModelProto:
    """Scales are float32 whatever the data is, and so are statistics that are computed."""
    scales = net.weight(np.float32([1, 1, 2, 2]))
    value = net.op("Resize", net.op("Tanh", net.input(1, 3, 4, 4)), "", scales, mode="nearest")
    made = in_half(net.build(net.op("Relu", value)))
    for each in made.graph.initializer:
        each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each).astype(np.float32), each.name))
    return made


def _with_ends(model: onnx.ModelProto, ends: int) -> onnx.ModelProto:
    made = in_half(model)
    for info in (*made.graph.input, *made.graph.output):
        info.type.tensor_type.elem_type = ends
    return made


MODELS: dict[str, tuple[Callable[[Net], onnx.ModelProto], set[str]]] = {
    "plain": (plain, set()),
    "float ends": (float_ends, set()),
    "float inside": (float_inside, {"nn.softmax"}),
    "two readers": (two_readers, {"exp"}),
    "resized": (resized, set()),
}
"""Models, and the operators that are float32 in them."""


def imported(name: str, *, halves: bool = True) -> tuple[onnx.ModelProto, Model]:
    net = Net(20)
    model = MODELS[name][0](net)
    for node in model.graph.node:  # an intermediate cast's declared type is its own
        assert node.op_type != "Cast" or helper.get_node_attr_value(node, "to") in (HALF, FLOAT)
    return model, import_model(model, halves=halves)


@pytest.mark.parametrize("name", MODELS)
def test_dtypes(name: str) -> None:
    """Each operator computes in the dtype that it has in the model, and constants are stored in it."""
    _, model = imported(name)
    graph, wide = model.graph, MODELS[name][1]
    computing = [node for node in graph.nodes if node.op != "astype"]
    for node in computing:
        dtype = "float32" if node.op in wide else "float16"
        assert {graph.type_of(v).dtype for v in node.outputs} == {dtype}, (node.op, dtype)
    assert {*wide} <= {node.op for node in computing}
    constants = {str(a.dtype) for v, a in graph.constants.items() if a.dtype.kind == "f" and graph.users[v]}
    assert constants <= {"float16"}


@pytest.mark.parametrize("name", MODELS)
def test_numbers(name: str) -> None:
    """ONNX Runtime computes the same of the folded model as of the model itself."""
    model, _ = imported(name)
    simple = simplify(model, halves=True)
    onnx.checker.check_model(simple, full_check=True)
    rng = np.random.default_rng(11)
    info = model.graph.input[0].type.tensor_type
    shape = [each.dim_value for each in info.shape.dim]
    feeds = [rng.normal(size=shape).astype(helper.tensor_dtype_to_np_dtype(info.elem_type))]
    for found, wanted in zip(run(simple, feeds), run(model, feeds), strict=True):
        assert found.dtype == wanted.dtype
        scale = np.abs(wanted.astype(np.float64)).max()
        assert np.abs(found.astype(np.float64) - wanted).max() <= 4e-3 * scale
