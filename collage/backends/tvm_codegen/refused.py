"""Operators that TVM's kernels leave to others: it changes results while it simplifies, or the process would end."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collage.graph.dataflow import Array, Graph, Node
from collage.graph.decisions import rounds_by_sum

_UNROUNDED = "bfloat16"
_DIVISIONS = ("divide", "floor_divide", "mod", "floor_mod")


def refusal(graph: Graph, nodes: Iterable[Node]) -> str:
    """Why TVM would get one of the nodes wrong beside the others, or end the process; "" if it does neither."""
    found = tuple(nodes)
    if sum(rounds_by_sum(graph, node) for node in found) > 1:
        return "TVM leaves out a large constant that is added and taken away again"
    for node in found:
        if any(graph.type_of(value).dtype == _UNROUNDED for value in node.outputs):
            return "TVM rounds no numbers to bfloat16 that it goes on with"
        if _may_trap(graph, node):
            return f"TVM's {node.op} of integers ends the process on a zero, and on the least number by -1"
        if _is_simplified(graph, node):
            return f"TVM simplifies {node.op}, which loses NaN or the sign of zero"
    return ""


def _may_trap(graph: Graph, node: Node) -> bool:
    """Whether the node divides integers by what may be 0 or -1."""
    if node.op not in _DIVISIONS or "int" not in graph.type_of(node.outputs[0]).dtype:
        return False
    by = graph.constants.get(node.inputs[1])
    return by is None or bool(np.isin(by, (0, -1)).any())


def _is_simplified(graph: Graph, node: Node) -> bool:
    """Whether the node adds a zero that changes -0, or has a result that is zero for all but NaN and infinities."""
    if node.op not in ("add", "subtract", "multiply", "divide"):
        return False
    if node.op == "subtract" and len({*node.inputs}) == 1:
        return "float" in graph.type_of(node.outputs[0]).dtype
    left, right = (graph.constants.get(value) for value in node.inputs)
    match node.op:
        case "add":
            return any(_is_zero(each, negative=False) for each in (left, right))
        case "subtract":
            return _is_zero(right, negative=True)
        case "multiply":
            return _is_zero(left) or _is_zero(right)
    return _is_zero(left)


def _is_zero(constant: Array | None, *, negative: bool | None = None) -> bool:
    """Whether a constant is zero, a float, and of the given sign if any. TVM does not look into arrays with axes."""
    if constant is None or constant.ndim or constant.dtype.kind != "f" or np.any(constant):
        return False
    return negative is None or bool(np.signbit(constant).all()) == negative
