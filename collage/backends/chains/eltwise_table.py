"""Operators of one input that oneDNN has as eltwise algorithms, and operators on a tensor and a number.

Its logarithm is none of them: near 1 it has an absolute error of 1.4e-6, so that log(1 + 1e-6) has the wrong sign. Nor
is its Softplus, of which `activations` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from collage.backends.chains.attributes import number
from collage.backends.chains.functions import DnnlAlgorithm, Eltwise
from collage.graph.dataflow import Graph, Node
from collage.graph.decisions import are_powers_of_two

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
    return _of_number(node.op, float(np.asarray(constant).reshape(())), first=place == 0)


def _of_number(op: str, by: float, first: bool) -> Eltwise | None:
    """The algorithm of an operator on a tensor and a number. ``first`` tells that the tensor is the first operand.

    What is only multiplied has -0.0 added to it, which no number loses its sign to: -0.0 + 0.0 is 0.0.
    """
    if op == "add":
        return Eltwise(DnnlAlgorithm.LINEAR, 1.0, by)
    if op == "multiply":
        return Eltwise(DnnlAlgorithm.LINEAR, by, -0.0)
    if op == "subtract":
        return Eltwise(DnnlAlgorithm.LINEAR, 1.0, -by) if first else Eltwise(DnnlAlgorithm.LINEAR, -1.0, by)
    if op == "divide" and first and are_powers_of_two(by):
        return Eltwise(DnnlAlgorithm.LINEAR, 1.0 / by, -0.0)
    if op == "maximum":
        return Eltwise(DnnlAlgorithm.RELU) if by == 0 else Eltwise(DnnlAlgorithm.CLIP, by, np.inf)
    if op == "minimum":
        return Eltwise(DnnlAlgorithm.CLIP, -np.inf, by)
    if op == "power" and first and by == 2:
        return Eltwise(DnnlAlgorithm.SQUARE)
    return None


def _of(algorithm: DnnlAlgorithm, alpha: float = 0.0, beta: float = 0.0) -> _Maker:
    return lambda node: Eltwise(algorithm, alpha, beta)


def _clip(node: Node) -> Eltwise | None:
    low, high = number(node, "arg1"), number(node, "arg2")
    if low == 0 and high == np.inf:
        return Eltwise(DnnlAlgorithm.RELU)
    return Eltwise(DnnlAlgorithm.CLIP, low, high)


_SINGLE: Mapping[str, _Maker] = {
    "nn.relu": _of(DnnlAlgorithm.RELU),
    "nn.leakyrelu": lambda node: Eltwise(DnnlAlgorithm.RELU, number(node, "alpha")),
    "nn.relu6": _of(DnnlAlgorithm.CLIP, 0.0, 6.0),
    "nn.gelu": _of(DnnlAlgorithm.GELU_ERF),
    "nn.gelu_tanh": _of(DnnlAlgorithm.GELU_TANH),
    "nn.silu": _of(DnnlAlgorithm.SWISH, 1.0),
    "hardswish": _of(DnnlAlgorithm.HARD_SWISH, 1 / 6, 0.5),
    "clip": _clip,
    "tanh": _of(DnnlAlgorithm.TANH),
    "sigmoid": _of(DnnlAlgorithm.SIGMOID),
    "exp": _of(DnnlAlgorithm.EXP),
    "sqrt": _of(DnnlAlgorithm.SQRT),
    "rsqrt": _of(DnnlAlgorithm.POWER, 1.0, -0.5),
    "abs": _of(DnnlAlgorithm.ABS),
    "square": _of(DnnlAlgorithm.SQUARE),
    "negative": _of(DnnlAlgorithm.LINEAR, -1.0, -0.0),
    "round": _of(DnnlAlgorithm.ROUND),
}

FUNCTIONS = frozenset((*_SINGLE, "erf", "power"))
"""Operators that are an eltwise algorithm, or can be part of one."""
