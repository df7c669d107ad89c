"""Arithmetic of operators: of ones, each product adds one to a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.arithmetic import CONVOLUTIONS, NOTHING, arithmetic_of, convolution_axes
from collage.graph.dataflow import Graph, Node
from tests.models import make_model
from tests.reference import evaluate


def one_node(proto: onnx.ModelProto) -> tuple[Subgraph, Graph, Node]:
    model = import_model(proto)
    (node,) = (each for each in model.graph.nodes if each.op in {*CONVOLUTIONS, "matmul", "nn.relu"})
    return Subgraph(model, (node.id,)), model.graph, node


def of_ones(subgraph: Subgraph) -> float:
    """The number of products in the operator's result."""
    (result,) = evaluate(subgraph, [np.ones(kind.shape) for kind in subgraph.input_types])
    return float(result.sum())


def conv(weights: tuple[int, ...], data: tuple[int, ...], op: str = "Conv", **attrs: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x", "w"], ["y"], kernel_shape=weights[2:], **attrs)
    return make_model(
        [node], {"x": list(data)}, {"y": [None] * len(data)}, {"w": np.ones(weights, np.float32)}
    )


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_convolutions_count_what_sees_no_padding(data: st.DataObject) -> None:
    kernel, stride, dilation = (data.draw(st.tuples(*[st.integers(1, most)] * 2)) for most in (4, 3, 2))
    pads = data.draw(st.tuples(*[st.integers(0, 2)] * 4))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [max(1, r - 2) + data.draw(st.integers(2, 7)) for r in reach]
    groups = data.draw(st.sampled_from([1, 2]))
    proto = conv(
        (4, 6 // groups, *kernel),
        (2, 6, *size),
        group=groups,
        strides=stride,
        dilations=dilation,
        pads=pads,
    )
    subgraph, graph, node = one_node(proto)
    assert arithmetic_of(graph, node).flop == 2 * of_ones(subgraph)


@pytest.mark.parametrize(("kernel", "pads", "group"), [((4, 4), 1, 1), ((3, 2), 0, 2), ((2, 5), 1, 1)])
def test_transposed_convolutions(kernel: tuple[int, int], pads: int, group: int) -> None:
    attrs = {"strides": [2, 2], "pads": [pads] * 4, "group": group}
    subgraph, graph, node = one_node(conv((4, 6, *kernel), (1, 4, 5, 7), "ConvTranspose", **attrs))
    assert arithmetic_of(graph, node).flop == 2 * of_ones(subgraph)


def test_products_and_others() -> None:
    weights = {"w": np.ones((7, 9), np.float32)}
    proto = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 5, 7]}, {"y": [2, 5, 9]}, weights
    )
    subgraph, graph, node = one_node(proto)
    assert arithmetic_of(graph, node).flop == 2 * of_ones(subgraph)
    assert arithmetic_of(graph, node).least_flop == pytest.approx(2 * 2 * 5 * 7 * 9)
    relu = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": [4]}, {})
    _, graph, node = one_node(relu)
    assert arithmetic_of(graph, node) is NOTHING


@pytest.mark.parametrize(
    ("kernel", "stride", "size", "saving"),
    [
        (3, 1, 56, 4.0),  # F(4x4, 3x3): 36 products for 144
        (1, 1, 56, 1.0),
        (3, 2, 56, 1.0),  # at distances there is no such algorithm
        (3, 1, 4, 16 * 9 / 36),
        (3, 1, 3, 9 * 9 / 25),  # and three results make no tile of four
    ],
)
def test_what_algorithms_save(kernel: int, stride: int, size: int, saving: float) -> None:
    pads = [kernel // 2] * 4
    proto = conv((16, 16, kernel, kernel), (1, 16, size, size), pads=pads, strides=[stride] * 2)
    _, graph, node = one_node(proto)
    assert arithmetic_of(graph, node).saving == pytest.approx(saving)


def test_groups_save_nothing_and_transposed_ones_have_windows_of_half_the_size() -> None:
    _, graph, node = one_node(conv((16, 8, 3, 3), (1, 16, 56, 56), pads=[1] * 4, group=2))
    assert arithmetic_of(graph, node).saving == 1.0
    _, graph, node = one_node(
        conv((16, 8, 4, 4), (1, 16, 9, 9), "ConvTranspose", strides=[2, 2], pads=[1] * 4)
    )
    assert arithmetic_of(graph, node).saving == pytest.approx(2.56)  # F(4x4, 2x2): 25 products for 64


def test_taps_that_see_nothing_but_padding() -> None:
    for size, all_taps in ((1, False), (2, True), (8, True)):
        _, graph, node = one_node(conv((4, 4, 3, 3), (1, 4, size, 8), pads=[1] * 4))
        axes = convolution_axes(graph, node)
        assert axes is not None and [each.takes_all for each in axes] == [all_taps, True]


def test_gaps_between_windows() -> None:
    _, graph, node = one_node(conv((4, 4, 1, 1), (1, 4, 8, 8), strides=[2, 2]))
    assert not any(axis.sees_all for axis in convolution_axes(graph, node) or ())
    _, graph, node = one_node(conv((4, 4, 3, 3), (1, 4, 8, 8), strides=[2, 2], pads=[1] * 4))
    assert all(axis.sees_all for axis in convolution_axes(graph, node) or ())
    _, graph, node = one_node(
        conv((4, 4, 2, 2), (1, 4, 9, 9), strides=[2, 2])
    )  # the last row is seen by none
    assert not any(axis.sees_all for axis in convolution_axes(graph, node) or ())
