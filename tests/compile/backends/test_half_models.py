"""Models in float16: libraries for GPUs take their chains, and libraries for CPUs take none of them."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto

from collage.backends.base import Backend
from collage.backends.chains.activations import recognise
from collage.backends.chains.functions import DnnlAlgorithm
from collage.backends.cublas import Cublas
from collage.backends.cudnn import Cudnn
from collage.backends.mkl import Mkl
from collage.backends.native import Native
from collage.backends.onednn import OneDnn
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches
from scripts.lib.gpu.half import in_half
from tests.compile.frontend.test_to_onnx import Net


def network(net: Net) -> str:
    """Convolutions with epilogues, a pooling, a product, functions of elements, a normalisation and a softmax."""
    x = net.op("Conv", net.input(1, 16, 8, 8), net.random(16, 16, 3, 3), net.random(16), pads=[1, 1, 1, 1])
    x = net.op("MaxPool", net.op("Relu", x), kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Reshape", x, net.ints(16, 16))
    x = net.op("Add", net.op("MatMul", x, net.random(16, 32)), net.random(32))
    x = net.op("LayerNormalization", net.op("Relu", x), net.random(32), net.random(32), axis=-1)
    return net.op("Softmax", net.op("Tanh", x), axis=-1)


def imported(dtype: int, make: Callable[[Net], str] = network, opset: int = 18) -> Model:
    net = Net(opset)
    return import_model(_in(dtype, net.build(make(net))), halves=True)


def _in(dtype: int, model: onnx.ModelProto) -> onnx.ModelProto:
    return in_half(model) if dtype == TensorProto.FLOAT16 else model


def found(backend: Backend, model: Model) -> set[tuple[str, ...]]:
    matches, _ = find_matches(MatchContext(model), backend.name, backend.sources(BuildOptions()))
    return {Subgraph(model, each.nodes).ops for each in matches}


def test_libraries_for_gpus_take_them() -> None:
    model = imported(TensorProto.FLOAT16)
    assert ("matmul", "add", "relu") in found(Cublas(), model)
    assert {("conv2d", "add", "relu"), ("max_pool2d",), ("layer_norm",)} <= found(Cudnn(), model)


@pytest.mark.parametrize("backend", [OneDnn(), Mkl(), Native()], ids=lambda each: each.name)
def test_libraries_for_cpus_take_none(backend: Backend) -> None:
    assert found(backend, imported(TensorProto.FLOAT)), "the same network in float32 has matches"
    assert not found(backend, imported(TensorProto.FLOAT16))


def test_a_chain_has_one_dtype() -> None:
    """A product in float16 whose result goes on in float32 is a product alone."""

    def make(net: Net) -> str:
        product = net.op("MatMul", net.input(4, 8), net.random(8, 8))
        return net.op("Add", net.op("Cast", product, to=TensorProto.FLOAT), net.input(4, 8, dtype="float32"))

    net = Net(18)
    whole = in_half(net.build(make(net)))
    whole.graph.input[1].type.tensor_type.elem_type = TensorProto.FLOAT
    whole.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    model = import_model(whole, halves=True)
    assert found(Cublas(), model) == {("matmul",)}


def gelu(net: Net, *, tanh: bool) -> str:
    """GELU in the operators that exporters make of it."""
    x = net.op("MatMul", net.input(4, 8), net.random(8, 8))

    def number(value: float) -> str:
        return net.weight(value, "float32")

    if tanh:
        cube = net.op("Mul", net.op("Mul", net.op("Mul", x, x), x), number(0.044715))
        inner = net.op("Tanh", net.op("Mul", net.op("Add", x, cube), number(0.7978845608)))
    else:
        inner = net.op("Erf", net.op("Div", x, number(1.4142135624)))
    return net.op("Mul", net.op("Mul", x, number(0.5)), net.op("Add", inner, number(1.0)))


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("tanh", [False, True])
def test_gelu(dtype: int, tanh: bool) -> None:
    """Its constants are rounded to the model's dtype, and it is recognised all the same."""
    graph = imported(dtype, lambda net: gelu(net, tanh=tanh)).graph
    product, *rest = graph.nodes
    assert product.op == "matmul"
    match = recognise(graph, {node.id: node for node in rest}, product.outputs[0])
    assert match is not None and len(match.nodes) == len(rest)
    algorithm = DnnlAlgorithm.GELU_TANH if tanh else DnnlAlgorithm.GELU_ERF
    assert [each.algorithm for each in match.functions] == [algorithm]


def test_another_function_is_no_gelu() -> None:
    """Constants that are off by more than two roundings make another function."""

    def make(net: Net) -> str:
        x = net.op("MatMul", net.input(4, 8), net.random(8, 8))
        half, one, root = (net.weight(each, "float32") for each in (0.5, 1.0, 1.4375))
        inner = net.op("Add", net.op("Erf", net.op("Div", x, root)), one)
        return net.op("Mul", net.op("Mul", x, half), inner)

    graph = imported(TensorProto.FLOAT16, make).graph
    product, *rest = graph.nodes
    match = recognise(graph, {node.id: node for node in rest}, product.outputs[0])
    assert match is None or not {each.algorithm for each in match.functions} & {DnnlAlgorithm.GELU_ERF}
