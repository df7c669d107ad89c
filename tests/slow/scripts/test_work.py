"""Arithmetic of networks, against numbers known from the literature or counted by hand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.frontend.rewrite.simplify import simplify
from scripts.lib.studies.peak import gemm
from scripts.lib.studies.work import Work, node_work
from tests.models import conv_net, make_model


def work_of(
    node: onnx.NodeProto, inputs: dict[str, list[int]], output: list[int], weights: dict[str, list[int]]
) -> Work:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in weights.items()}
    (found,) = node_work(make_model([node], inputs, {"y": output}, arrays)).values()
    return found


def test_the_first_convolution_of_resnet50() -> None:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], "stem", strides=[2, 2], pads=[3, 3, 3, 3])
    shapes = {"w": [64, 3, 7, 7], "b": [64]}
    found = work_of(node, {"x": [1, 3, 224, 224]}, [1, 64, 112, 112], shapes)
    assert found == Work(2 * 118_013_952, 4 * (64 * 3 * 49 + 64))


def test_groups_and_three_dimensions() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], "grouped", group=32, pads=[1, 1, 1, 1])
    found = work_of(node, {"x": [1, 128, 56, 56]}, [1, 128, 56, 56], {"w": [128, 4, 3, 3]})
    assert found.flop == 2 * 56 * 56 * 128 * 4 * 9
    node = helper.make_node("Conv", ["x", "w"], ["y"], "clip", pads=[1] * 6)
    found = work_of(node, {"x": [2, 8, 4, 5, 6]}, [2, 16, 4, 5, 6], {"w": [16, 8, 3, 3, 3]})
    assert found.flop == 2 * 2 * 16 * 4 * 5 * 6 * 8 * 27


def test_a_transposed_convolution_of_dcgan() -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", strides=[2, 2], pads=[1, 1, 1, 1])
    found = work_of(node, {"x": [1, 512, 4, 4]}, [1, 256, 8, 8], {"w": [512, 256, 4, 4]})
    assert found.flop == 2 * 4 * 4 * 512 * 256 * 16


@pytest.mark.parametrize(
    ("op", "a", "b", "y", "attributes"),
    [
        ("MatMul", [64, 768], [768, 3072], [64, 3072], {}),
        ("Gemm", [64, 768], [768, 3072], [64, 3072], {}),
        ("Gemm", [768, 64], [3072, 768], [64, 3072], {"transA": 1, "transB": 1}),
    ],
)
def test_products(op: str, a: list[int], b: list[int], y: list[int], attributes: dict[str, int]) -> None:
    found = work_of(helper.make_node(op, ["a", "b"], ["y"], "p", **attributes), {"a": a}, y, {"b": b})
    assert found == Work(301_989_888, 4 * 768 * 3072)


def test_batches_of_products_have_no_weights() -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"], "scores")
    found = work_of(node, {"a": [1, 12, 64, 64], "b": [1, 12, 64, 32]}, [1, 12, 64, 32], {})
    assert found == Work(2 * 12 * 64 * 64 * 32, 0)


def test_a_network_with_inferred_shapes() -> None:
    found = node_work(simplify(conv_net(channels=8, size=16)))
    assert {name: each.flop for name, each in found.items()} == {
        "conv1": 2 * 8 * 16 * 16 * 3 * 9,
        "conv2": 2 * 8 * 16 * 16 * 8 * 9,
        "dense": 2 * 8 * 10,
    }


def test_unknown_shapes_and_other_operators_are_left_out() -> None:
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["y"], "symbolic"),
        helper.make_node("Relu", ["y"], ["z"], "relu"),
    ]
    model = make_model(nodes, {"a": ["n", 4], "b": [4, 4]}, {"y": ["n", 4], "z": ["n", 4]})
    assert node_work(model) == {}


def test_the_product_of_the_arithmetic_limit() -> None:
    assert node_work(gemm(64)) == {"gemm": Work(2 * 64**3, 4 * 64**2)}
