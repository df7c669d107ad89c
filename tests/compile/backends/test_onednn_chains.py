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
from tests.models import conv_net, make_model


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
ERF = [node("Div", "a", "root", to="g1"), node("Erf", "g1", to="g2"), node("Add", "g2", "one", to="g3")]
GELU = Eltwise(DnnlAlgorithm.GELU_ERF)
ACTIVATIONS: dict[str, tuple[list[onnx.NodeProto], tuple[Eltwise, ...]]] = {
    "gelu": ([*ERF, node("Mul", "a", "g3", to="g4"), node("Mul", "g4", "half", to="y")], (GELU,)),
    "gelu, with a product with the root": (
        [
            node("Mul", "a", "inverse", to="g1"),
            *ERF[1:],
            node("Mul", "half", "a", to="g4"),
            node("Mul", "g4", "g3", to="y"),
        ],
        (GELU,),
    ),
    "gelu, halved first": (
        [
            *ERF[:2],
            node("Mul", "g2", "half", to="g3"),
            node("Add", "g3", "half", to="g4"),
            node("Mul", "g4", "a", to="y"),
        ],
        (GELU,),
    ),
    "twice a gelu": (
        [*ERF, node("Mul", "a", "g3", to="y")],
        (GELU, Eltwise(DnnlAlgorithm.LINEAR, 2.0, 0.0)),
    ),
    "gelu by tanh": (
        [
            node("Pow", "a", "three", to="g1"),
            node("Mul", "g1", "cubic", to="g2"),
            node("Add", "a", "g2", to="g3"),
            node("Mul", "g3", "slope", to="g4"),
            node("Tanh", "g4", to="g5"),
            node("Add", "g5", "one", to="g6"),
            node("Mul", "a", "g6", to="g7"),
            node("Mul", "g7", "half", to="y"),
        ],
        (Eltwise(DnnlAlgorithm.GELU_TANH),),
    ),
    "silu": (
        [node("Sigmoid", "a", to="s"), node("Mul", "a", "s", to="y")],
        (Eltwise(DnnlAlgorithm.SWISH, 1.0),),
    ),
    "twice": ([node("Add", "a", "a", to="y")], (Eltwise(DnnlAlgorithm.LINEAR, 2.0, 0.0),)),
    "hard swish": (
        [node("HardSwish", "a", to="y")],
        (Eltwise(DnnlAlgorithm.HARD_SWISH, pytest.approx(1 / 6), 0.5),),
    ),
    "elu": ([node("Elu", "a", to="y")], (Eltwise(DnnlAlgorithm.ELU, 1.0),)),
}


def used(nodes: list[onnx.NodeProto]) -> dict[str, float]:
    return {name: value for name, value in NUMBERS.items() if any(name in n.input for n in nodes)}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_in_single_operators_are_recognised(name: str) -> None:
    nodes, functions = ACTIVATIONS[name]
    assert longest(after_abs(*nodes, **used(nodes))).epilogue == (Eltwise(DnnlAlgorithm.ABS), *functions)


def test_almost_gelu_is_not_recognised() -> None:
    nodes = ACTIVATIONS["gelu"][0]
    assert "abs+divide+erf+add+multiply+multiply" not in offered(
        after_abs(*nodes, **{**used(nodes), "root": 1.5})
    )


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
