"""Operators whose results TVM changes while it simplifies expressions, so that its kernels leave them to others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collage.graph.dataflow import Array, Graph, Node
from collage.graph.decisions import rounds_by_sum

_UNROUNDED = "bfloat16"


def refusal(graph: Graph, nodes: Iterable[Node]) -> str:
    """Why TVM would get one of the nodes wrong beside the others; "" if it does not."""
    found = tuple(nodes)
    if sum(rounds_by_sum(graph, node) for node in found) > 1:
        return "TVM leaves out a large constant that is added and taken away again"
    for node in found:
        if any(graph.type_of(value).dtype == _UNROUNDED for value in node.outputs):
            return "TVM rounds no numbers to bfloat16 that it goes on with"
        if _is_simplified(graph, node):
            return f"TVM simplifies {node.op}, which loses NaN or the sign of zero"
    return ""


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
