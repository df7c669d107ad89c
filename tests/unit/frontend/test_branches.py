"""Branches that samples always take, in the place of their If."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.frontend.rewrite.branches import taken_branches
from collage.frontend.session import reference_run

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def number(name: str, value: object, dtype: type = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, dtype), name)


def info(name: str, kind: int, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def body(
    name: str, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], *weights: onnx.TensorProto
) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [info(each, FLOAT, None) for each in outputs], weights)


def model_of(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str] = ("y",), *weights: onnx.TensorProto
) -> onnx.ModelProto:
    """A model of x [2, 3] and the setting ``rate``, a scalar; 16000 is the constant ``wide``."""
    graph = helper.make_graph(
        nodes,
        "main",
        [info("x", FLOAT, [2, 3]), info("rate", INT64, [])],
        [info(each, FLOAT, [2, 3]) for each in outputs],
        [number("wide", 16000), *weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def choice() -> onnx.ModelProto:
    """Both branches use the same names inside, and a value from outside; one has a weight, the other an If in it."""
    inner = helper.make_node(
        "If",
        ["positive"],
        ["deep"],
        "inner",
        then_branch=body("a", [helper.make_node("Exp", ["kept"], ["t"])], ["t"]),
        else_branch=body("b", [helper.make_node("Neg", ["kept"], ["t"])], ["t"]),
    )
    then = body(
        "then",
        [helper.make_node("Mul", ["kept", "w"], ["t"]), helper.make_node("Identity", ["kept"], ["k"])],
        ["t", "k"],
        number("w", 3, np.float32),
    )
    other = body(
        "else",
        [
            helper.make_node("Greater", ["rate", "zero"], ["positive"]),
            inner,
            helper.make_node("Add", ["deep", "x"], ["t"]),
            helper.make_node("Identity", ["kept"], ["k"]),
        ],
        ["t", "k"],
        number("zero", 0),
    )
    return model_of(
        [
            helper.make_node("Relu", ["x"], ["kept"]),
            helper.make_node("Equal", ["rate", "wide"], ["is_wide"]),
            helper.make_node("If", ["is_wide"], ["y", "z"], "choose", then_branch=then, else_branch=other),
        ],
        ["y", "z"],
    )


def sample(rate: int, seed: int = 0) -> dict[str, Any]:
    return {
        "x": np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32),
        "rate": np.array(rate, np.int64),
    }


@pytest.mark.parametrize("rate", [16000, 8000, -5])
def test_the_branch_of_the_samples_is_kept(rate: int) -> None:
    model = choice()
    before = model.SerializeToString()
    taken = taken_branches(model, [sample(rate, seed) for seed in range(3)])
    assert model.SerializeToString() == before
    onnx.checker.check_model(taken.model, full_check=True)
    assert not Counter(node.op_type for node in taken.model.graph.node).keys() & {"If", "Equal", "Greater"}
    assert {name: value.tolist() for name, value in taken.assumed.items()} == {"rate": rate}
    assert taken.branches["choose"] == (rate == 16000)
    assert ("choose/inner" in taken.branches or "inner" in taken.branches) == (rate != 16000)
    feeds = sample(rate, 9)
    for wanted, found in zip(reference_run(model, feeds), reference_run(taken.model, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "samples",
    [[], [sample(16000), sample(8000)], [{"x": sample(0)["x"]}]],
    ids=["none", "different", "without the setting"],
)
def test_without_evidence_nothing_changes(samples: Sequence[Mapping[str, Any]]) -> None:
    model = choice()
    taken = taken_branches(model, samples)
    assert taken.model is model
    assert not taken.assumed


def test_a_branch_may_give_a_weight() -> None:
    weight = number("t", [[1, 2, 3], [4, 5, 6]], np.float32)
    then, other = body("a", [], ["t"], weight), body("b", [helper.make_node("Exp", ["x"], ["t"])], ["t"])
    node = helper.make_node("If", ["c"], ["y"], "n", then_branch=then, else_branch=other)
    model = model_of([helper.make_node("Equal", ["rate", "wide"], ["c"]), node])
    for rate in (16000, 1):
        taken = taken_branches(model, [sample(rate)])
        onnx.checker.check_model(taken.model, full_check=True)
        feeds = sample(rate, 4)
        np.testing.assert_array_equal(reference_run(taken.model, feeds)[0], reference_run(model, feeds)[0])
