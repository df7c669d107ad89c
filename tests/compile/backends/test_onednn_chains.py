"""Which chains oneDNN is offered, how activations are recognised, and the variants of a chain; no library needed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.backends.chains.activations import _Reader
from collage.backends.chains.chain import Chain
from collage.backends.chains.functions import DnnlAlgorithm, Eltwise
from collage.backends.onednn import OneDnn
from collage.backends.onednn_kernels.roots import task_of
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Node
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches
from tests.helpers.models import conv_net, make_model


def offered(proto: onnx.ModelProto) -> dict[str, Subgraph]:
    """The matches by their operators; of several alike, the last."""
    context = MatchContext(import_model(proto))
    matches, _ = find_matches(context, "onednn", OneDnn().sources(BuildOptions()))
    return {"+".join(s.ops): s for s in (Subgraph(context.model, m.nodes) for m in matches)}


def chain_of(subgraph: Subgraph) -> Chain:
    """The chain that oneDNN reads a subgraph as."""
    _, task = task_of(subgraph)
    chain = task if isinstance(task, Chain) else task.chain
    assert isinstance(chain, Chain)
    return chain


def longest(proto: onnx.ModelProto) -> Chain:
    subgraph = max(offered(proto).values(), key=lambda each: len(each.nodes))
    return chain_of(subgraph)


def after_abs(*nodes: onnx.NodeProto, **numbers: float) -> onnx.ModelProto:
    """Nodes from ``a`` to ``y``, where ``a`` is a result; numbers are scalar constants."""
    weights = {name: np.array(value, np.float32) for name, value in numbers.items()}
    first = helper.make_node("Abs", ["x"], ["a"])
    return make_model([first, *nodes], {"x": [1, 16, 4, 4]}, {"y": [1, 16, 4, 4]}, weights)


def node(op: str, *inputs: str, to: str) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [to])


def test_prefixes_are_offered() -> None:
    found = offered(conv_net(channels=16))
    assert {"conv2d", "conv2d+add", "conv2d+add+relu", "conv2d+add+add", "conv2d+add+add+relu"} <= set(found)
    assert {"matmul", "mean", "mean+reshape", "add+relu"} <= set(found)
    assert "relu+mean" not in found  # a chain begins with the pooling


def test_attention_is_offered_with_its_transposes() -> None:
    heads = {"perm": [0, 2, 1, 3]}
    nodes = [
        helper.make_node("Transpose", ["q"], ["a"], **heads),
        helper.make_node("Transpose", ["k"], ["b"], perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["v"], ["c"], **heads),
        helper.make_node("MatMul", ["a", "b"], ["s"]),
        helper.make_node("Add", ["s", "mask"], ["m"]),
        helper.make_node("Softmax", ["m"], ["w"]),
        helper.make_node("MatMul", ["w", "c"], ["o"]),
        helper.make_node("Transpose", ["o"], ["y"], **heads),
    ]
    inputs = {**{name: [1, 8, 2, 4] for name in "qkv"}, "mask": [1, 1, 1, 8]}
    found = set(offered(make_model(nodes, inputs, {"y": [1, 8, 2, 4]})))
    assert "permute_dims+permute_dims+matmul+add" in found
    assert "permute_dims+matmul+permute_dims" in found
    assert {"matmul", "matmul+add", "matmul+permute_dims", "softmax"} <= found


NUMBERS = {
    "root": 2**0.5,
    "inverse": 0.5**0.5,
    "one": 1,
    "half": 0.5,
    "three": 3,
    "cubic": 0.044715,
    "slope": (2 / np.pi) ** 0.5,
}
GELU = Eltwise(DnnlAlgorithm.GELU_ERF)
ACTIVATIONS: dict[str, tuple[str, tuple[Eltwise, ...]]] = {
    "gelu": ("g1 = Div a root; g2 = Erf g1; g3 = Add g2 one; g4 = Mul a g3; y = Mul g4 half", (GELU,)),
    "gelu, with a product with the root": (
        "g1 = Mul a inverse; g2 = Erf g1; g3 = Add one g2; g4 = Mul half a; y = Mul g4 g3",
        (GELU,),
    ),
    "gelu, halved first": (
        "g1 = Div a root; g2 = Erf g1; g3 = Mul g2 half; g4 = Add g3 half; y = Mul g4 a",
        (GELU,),
    ),
    "twice a gelu": (
        "g1 = Div a root; g2 = Erf g1; g3 = Add g2 one; y = Mul a g3",
        (GELU, Eltwise(DnnlAlgorithm.LINEAR, 2.0, 0.0)),
    ),
    "gelu by tanh": (
        "g1 = Pow a three; g2 = Mul g1 cubic; g3 = Add a g2; g4 = Mul g3 slope; g5 = Tanh g4; g6 = Add g5 one; "
        "g7 = Mul a g6; y = Mul g7 half",
        (Eltwise(DnnlAlgorithm.GELU_TANH),),
    ),
    "silu": ("s = Sigmoid a; y = Mul a s", (Eltwise(DnnlAlgorithm.SWISH, 1.0),)),
    "twice": ("y = Add a a", (Eltwise(DnnlAlgorithm.LINEAR, 2.0, 0.0),)),
    "hard swish": ("y = HardSwish a", (Eltwise(DnnlAlgorithm.HARD_SWISH, pytest.approx(1 / 6), 0.5),)),
    "elu": ("y = Elu a", (Eltwise(DnnlAlgorithm.ELU, 1.0),)),
}


def written(text: str, **other: float) -> onnx.ModelProto:
    """The operators of ``text`` on a result ``a``, with the NUMBERS, or others, that they read."""
    nodes = []
    for each in text.split("; "):
        output, _, op, *inputs = each.split()
        nodes.append(node(op, *inputs, to=output))
    read = {name for each in nodes for name in each.input}
    return after_abs(*nodes, **{name: n for name, n in {**NUMBERS, **other}.items() if name in read})


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_in_single_operators_are_recognised(name: str) -> None:
    text, functions = ACTIVATIONS[name]
    assert longest(written(text)).epilogue == (Eltwise(DnnlAlgorithm.ABS), *functions)


def test_almost_gelu_is_not_recognised() -> None:
    found = offered(written(ACTIVATIONS["gelu"][0], root=1.5))
    assert "abs+divide+erf+add+multiply+multiply" not in found


@pytest.mark.parametrize("op", ["Log", "Softplus", "Mish"])
def test_what_is_inexact_in_onednn_is_no_function(op: str) -> None:
    """Its logarithm near 1, and Softplus and mish of negative numbers."""
    assert not any("log" in ops.split("+") for ops in offered(after_abs(node(op, "a", to="y"))))


def test_a_long_chain_of_products_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both operands of each product are the product before: the time must not double with each."""
    calls = 0
    apply = _Reader._apply

    def counted(self: _Reader, node: Node, parts: list[Any]) -> Any:
        nonlocal calls
        calls += 1
        return apply(self, node, parts)

    monkeypatch.setattr(_Reader, "_apply", counted)
    names = ["a", *(f"p{i}" for i in range(17)), "y"]
    nodes = [node("Mul", one, one, to=other) for one, other in pairwise(names)]
    assert offered(after_abs(*nodes))
    assert calls < 100_000  # each would be expanded 2 ** 18 times


def test_views_that_broadcast_against_each_other_are_no_function() -> None:
    """r of 8 elements, as a column plus as a row: 64 elements, and not twice r."""
    axes = {"row": np.array([0], np.int64), "column": np.array([1], np.int64)}
    nodes = [
        node("Relu", "x", to="r"),
        node("Unsqueeze", "r", "column", to="c"),
        node("Unsqueeze", "r", "row", to="w"),
        node("Add", "c", "w", to="y"),
    ]
    assert not any("add" in ops for ops in offered(make_model(nodes, {"x": [8]}, {"y": [8, 8]}, axes)))
