"""Models of one matrix product and what follows it, given and random ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper

from tests.helpers.models import make_model

EPILOGUES = [
    (),
    ("Relu",),
    ("Tanh",),
    ("Sigmoid",),
    ("Gelu",),
    ("GeluTanh",),
    ("Silu",),
    ("Residual",),
    ("Residual", "Relu"),
    ("Gelu", "Residual"),
    ("Clip", "Residual"),
    ("Tanh", "Clip"),
]


def product_model(
    left: list[int], columns: int, *, bias: bool = True, then: tuple[str, ...] = (), scale: float = 1.0
) -> onnx.ModelProto:
    """A product with a constant matrix, and then a bias and what else is asked for."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((left[-1], columns)) * scale / math.sqrt(left[-1])
    numbers: dict[str, Any] = {"w": weights.astype(np.float32)}
    inputs = {"x": left}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]

    def add(op: str, *operands: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, list(operands), [f"y{len(nodes)}"], **attrs))
        return str(nodes[-1].output[0])

    value = "y"
    if bias:
        numbers["b"] = rng.standard_normal(columns).astype(np.float32)
        value = add("Add", value, "b")
    for op in then:
        if op == "Residual":
            inputs["r"] = [*left[:-1], columns]
            value = add("Add", "r", value)
        elif op == "Clip":
            numbers |= {"low": np.array(-0.5, np.float32), "high": np.array(1.5, np.float32)}
            value = add("Clip", value, "low", "high")
        elif op == "Silu":
            value = add("Mul", value, add("Sigmoid", value))
        elif op.startswith("Gelu"):
            value = add("Gelu", value, approximate="tanh" if op.endswith("Tanh") else "none")
        else:
            value = add(op, value)
    return make_model(nodes, inputs, {value: [None] * len(left)}, numbers, opset=20)


@st.composite
def weighted_products(draw: st.DrawFn) -> onnx.ModelProto:
    """With a constant matrix, and one of the epilogues."""
    left = draw(st.sampled_from([[], [1], [2]]))
    return product_model(
        [*left, draw(st.integers(1, 40)), draw(st.one_of(st.integers(1, 80), st.sampled_from([1025, 2050])))],
        draw(st.integers(1, 200)),
        bias=draw(st.booleans()),
        then=draw(st.sampled_from(EPILOGUES)),
    )


@st.composite
def any_products(draw: st.DrawFn) -> onnx.ModelProto:
    """Batched or not, of a constant or a computed operand that may broadcast, and what may follow."""
    rng = np.random.default_rng(0)
    m, k, n = (
        draw(st.integers(1, 40)),
        draw(st.integers(1, 40)),
        draw(st.sampled_from([1, 7, 16, 33, 96, 200])),
    )
    lead = draw(st.sampled_from([(), (1,), (3,), (2, 3), (1, 4)]))
    left, right = (*lead, m, k), (k, n)
    weights, inputs = {"w": rng.standard_normal(right).astype(np.float32)}, {"x": left}
    if draw(st.booleans()):
        right = (*draw(st.sampled_from([(), lead, (1,) * len(lead)])), k, n)
        weights, inputs = {}, {"x": left, "w": right}
    nodes, last = [helper.make_node("MatMul", ["x", "w"], ["p"])], "p"

    def then(op: str, *operands: str) -> None:
        nonlocal last
        nodes.append(helper.make_node(op, [last, *operands], [f"{op}{len(nodes)}"]))
        last = nodes[-1].output[0]

    if draw(st.booleans()):
        shape = draw(st.sampled_from([(n,), (1, n), (m, 1), (m, n), ()]))
        weights["b"] = rng.standard_normal(shape).astype(np.float32)
        then(draw(st.sampled_from(["Add", "Mul"])), "b")
    if draw(st.booleans()):
        then(draw(st.sampled_from(["Relu", "Tanh", "Sigmoid"])))
    if draw(st.booleans()):
        inputs["r"] = draw(st.sampled_from([(n,), (*lead, m, n), (m, n)]))
        then(draw(st.sampled_from(["Add", "Mul", "Sub"])), "r")
    return make_model(nodes, inputs, {last: [None] * (len(lead) + 2)}, weights)


@st.composite
def transposed_products(draw: st.DrawFn) -> onnx.ModelProto:
    """(batch..., M, K) from axes in any order, times a matrix batch that fits, and the result in any order."""
    shape = draw(st.sampled_from([(2, 3, 4), (1, 3, 5), (1, 6, 4, 5), (2, 2, 3, 4)]))
    stored, order = draw(st.permutations(shape)), draw(st.permutations(range(len(shape))))
    then = draw(st.sampled_from([(), ("Relu",), ("Add",)]))
    rank = len(stored)
    left = [stored[axis] for axis in order]
    right = [*left[:-2], left[-1], 7]
    back = sorted(range(rank), key=order.__getitem__)
    nodes = [
        helper.make_node("Transpose", ["x"], ["l"], perm=order),
        helper.make_node("Transpose", ["z"], ["r"], perm=order),
        helper.make_node("MatMul", ["l", "r"], ["p"]),
        *(helper.make_node(op, ["p", "b"] if op == "Add" else ["p"], ["q"]) for op in then),
        helper.make_node("Transpose", ["q" if then else "p"], ["y"], perm=order),
    ]
    weights = {"b": np.arange(7, dtype=np.float32)} if then == ("Add",) else {}
    inputs = {"x": stored, "z": [right[axis] for axis in back]}
    return make_model(nodes, inputs, {"y": [None] * rank}, weights)
