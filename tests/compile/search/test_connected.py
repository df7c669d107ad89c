"""Requests of reduced precision stay where a product is near that has the value in reduced precision, too."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from collage.frontend.model import Model, import_model
from collage.graph.storage import BF16, PLAIN, PLAIN_BF16
from collage.kernel.options import ALL_PLAIN, Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.search.connected import connected
from tests.helpers.models import make_model

DATA, RESULT, BOTH = (
    Variant((taken,), (given,), precision=BF16)
    for taken, given in ((PLAIN_BF16, PLAIN), (PLAIN, PLAIN_BF16), (PLAIN_BF16, PLAIN_BF16))
)


@pytest.fixture(scope="module")
def model() -> Model:
    """A sigmoid, a product, a softmax, a reshape, a product and a tanh in a row; and an exp and an abs beside them."""
    weights = np.ones((4, 4), np.float32)
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Softmax", ["b"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["e"]),
        helper.make_node("Tanh", ["e"], ["y"]),
        helper.make_node("Exp", ["u"], ["v"]),
        helper.make_node("Abs", ["v"], ["z"]),
    ]
    numbers = {"w": weights, "shape": np.array([1, 2, 4])}
    return import_model(make_model(nodes, {"x": [2, 4], "u": [2, 4]}, {"y": [1, 2, 4], "z": [2, 4]}, numbers))


def node(model: Model, op: str, number: int = 0) -> int:
    return [each.id for each in model.graph.nodes if each.op.split(".")[-1] == op][number]


def of(node: int, variant: Variant) -> CandidateRequest:
    return CandidateRequest((node,), "lib", variant)


def test_what_meets_a_product_stays(model: Model) -> None:
    sigmoid, softmax, tanh = (node(model, op) for op in ("sigmoid", "softmax", "tanh"))
    first, second = node(model, "matmul"), node(model, "matmul", 1)
    products = [of(first, DATA), of(first, BOTH), of(second, DATA)]
    stay = [of(sigmoid, RESULT), of(softmax, DATA), of(softmax, RESULT), of(softmax, BOTH)]
    go = [of(sigmoid, DATA), of(sigmoid, BOTH), of(tanh, DATA)]
    others = [of(each, ALL_PLAIN) for each in (sigmoid, softmax, tanh)]
    views = [(node(model, "reshape"),)]
    found = connected(model, [*products, *stay, *go, *others], views)
    assert found == {*products, *stay, *others}
    without = connected(model, [*products, *stay, *go, *others], [])
    assert of(softmax, RESULT) not in without and of(softmax, DATA) in without


def test_what_meets_only_its_like_goes(model: Model) -> None:
    exp, absolute = node(model, "exp"), node(model, "abs")
    pair = [of(exp, RESULT), of(absolute, DATA)]
    far = [of(node(model, "matmul"), BOTH)]
    assert connected(model, [*pair, *far], []) == {*far}
