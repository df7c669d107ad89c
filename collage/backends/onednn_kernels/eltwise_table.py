"""Operators of one input that oneDNN has as eltwise algorithms, and operators on a tensor and a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from collage.backends.onednn_kernels.post_ops import Algorithm, Eltwise
from collage.graph.dataflow import Graph, Node

_Maker = Callable[[Node], "Eltwise | None"]


def single(node: Node) -> Eltwise | None:
    """The eltwise algorithm of an operator of one input, or None."""
    maker = _SINGLE.get(node.op)
    return maker(node) if maker is not None and len(node.inputs) == 1 else None


def linear_of(graph: Graph, node: Node, value: int) -> Eltwise | None:
    """The eltwise algorithm of an operator on ``value`` and a constant of one element, or None.

    The number must not add axes to the value.
    """
    if len(node.inputs) != 2 or node.inputs.count(value) != 1:
        return None
    place = node.inputs.index(value)
    constant = graph.constants.get(node.inputs[1 - place])
    if constant is None or constant.size != 1 or graph.type_of(node.outputs[0]) != graph.type_of(value):
        return None
    number = float(np.asarray(constant).reshape(()))
    return _of_number(node.op, number, first=place == 0)


def _of_number(op: str, number: float, first: bool) -> Eltwise | None:
    """``first`` tells that the tensor is the first operand."""
    if op == "add":
        return Eltwise(Algorithm.LINEAR, 1.0, number)
    if op == "multiply":
        return Eltwise(Algorithm.LINEAR, number, 0.0)
    if op == "subtract":
        return Eltwise(Algorithm.LINEAR, 1.0, -number) if first else Eltwise(Algorithm.LINEAR, -1.0, number)
    if op == "divide" and first and number != 0:
        return Eltwise(Algorithm.LINEAR, 1.0 / number, 0.0)
    if op == "maximum":
        return Eltwise(Algorithm.RELU) if number == 0 else Eltwise(Algorithm.CLIP, number, np.inf)
    if op == "minimum":
        return Eltwise(Algorithm.CLIP, -np.inf, number)
    if op == "power" and first and number == 2:
        return Eltwise(Algorithm.SQUARE)
    return None


def number_attr(node: Node, name: str, default: float | None = None) -> float:
    """A real attribute. Raises TypeError when it is none."""
    value = node.attrs.get(name, default)
    if not isinstance(value, (int, float)):
        raise TypeError(f"{node.op}: {name} = {value!r} is no number")
    return float(value)


def _of(algorithm: Algorithm, alpha: float = 0.0, beta: float = 0.0) -> _Maker:
    return lambda node: Eltwise(algorithm, alpha, beta)


def _clip(node: Node) -> Eltwise | None:
    low, high = number_attr(node, "arg1"), number_attr(node, "arg2")
    if low == 0 and high == np.inf:
        return Eltwise(Algorithm.RELU)
    return Eltwise(Algorithm.CLIP, low, high)


def _softplus(node: Node) -> Eltwise | None:
    return Eltwise(Algorithm.SOFT_RELU, number_attr(node, "beta", 1.0))


_SINGLE: Mapping[str, _Maker] = {
    "nn.relu": _of(Algorithm.RELU),
    "nn.leakyrelu": lambda node: Eltwise(Algorithm.RELU, number_attr(node, "alpha")),
    "nn.relu6": _of(Algorithm.CLIP, 0.0, 6.0),
    "nn.gelu": _of(Algorithm.GELU_ERF),
    "nn.gelu_tanh": _of(Algorithm.GELU_TANH),
    "nn.silu": _of(Algorithm.SWISH, 1.0),
    "nn.softplus": _softplus,
    "hardswish": _of(Algorithm.HARD_SWISH, 1 / 6, 0.5),
    "clip": _clip,
    "tanh": _of(Algorithm.TANH),
    "sigmoid": _of(Algorithm.SIGMOID),
    "exp": _of(Algorithm.EXP),
    "log": _of(Algorithm.LOG),
    "sqrt": _of(Algorithm.SQRT),
    "rsqrt": _of(Algorithm.POWER, 1.0, -0.5),
    "abs": _of(Algorithm.ABS),
    "square": _of(Algorithm.SQUARE),
    "negative": _of(Algorithm.LINEAR, -1.0, 0.0),
    "round": _of(Algorithm.ROUND),
}
