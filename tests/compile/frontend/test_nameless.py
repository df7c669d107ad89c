"""Attributes without the names in bodies: equal for equal work, and different for everything else."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.frontend.model import nameless_attributes


def loop(prefix: str = "", outer: tuple[str, str] = ("v", "w"), operator: str = "Add") -> onnx.NodeProto:
    """A loop that adds a constant of its own, and something else if a captured value is true."""

    def name(text: str) -> str:
        return prefix + text

    branch = helper.make_graph(
        [helper.make_node(operator, [name("s"), outer[1]], [name("sum")], name("add"))],
        name("then"),
        [],
        [helper.make_tensor_value_info(name("sum"), TensorProto.FLOAT, [3])],
    )
    other = helper.make_graph(
        [helper.make_node("Add", [name("s"), name("k")], [name("same")], name("other"))],
        name("else"),
        [],
        [helper.make_tensor_value_info(name("same"), TensorProto.FLOAT, [3])],
    )
    body = helper.make_graph(
        [
            helper.make_node("If", [outer[0]], [name("t")], then_branch=branch, else_branch=other),
            helper.make_node("Identity", [name("c")], [name("d")]),
        ],
        name("body"),
        [
            helper.make_tensor_value_info(name("i"), TensorProto.INT64, []),
            helper.make_tensor_value_info(name("c"), TensorProto.BOOL, []),
            helper.make_tensor_value_info(name("s"), TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info(name("d"), TensorProto.BOOL, []),
            helper.make_tensor_value_info(name("t"), TensorProto.FLOAT, [3]),
        ],
        [numpy_helper.from_array(np.ones(3, np.float32), name("k"))],
    )
    return helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)


def test_names_are_left_out() -> None:
    node = loop("a/", ("first", "second"))
    before = node.SerializeToString(deterministic=True)
    assert nameless_attributes(node) == nameless_attributes(loop())
    assert node.SerializeToString(deterministic=True) == before


def test_what_is_captured_counts() -> None:
    assert nameless_attributes(loop(outer=("v", "v"))) != nameless_attributes(loop())
    assert nameless_attributes(loop(outer=("v", "i"))) != nameless_attributes(loop())


def test_operators_and_constants_count() -> None:
    assert nameless_attributes(loop(operator="Mul")) != nameless_attributes(loop())
    other = loop()
    other.attribute[0].g.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros(3, np.float32), "k"))
    assert nameless_attributes(other) != nameless_attributes(loop())


def test_attributes_of_other_nodes_are_themselves() -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=1)
    assert nameless_attributes(node) == node.attribute[0].SerializeToString(deterministic=True)
