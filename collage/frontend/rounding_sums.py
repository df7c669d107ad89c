"""ONNX nodes that add a large constant and take it away again, which rounds what is between (``graph.rounding_sums``).

An engine that adds the two constants first makes of the sum what it was before.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from collage.frontend.weights import array_of, is_apart, is_external
from collage.graph.dataflow import Array
from collage.graph.rounding_sums import Term, cancels, constant_term

_REASON = "is part of a sum that rounds: a large constant is added and taken away again"


def rounding_sums(graph: onnx.GraphProto) -> Mapping[int, str]:
    """What is the matter with the nodes, by index, that are parts of such sums."""
    constants = {each.name: each for each in graph.initializer}
    terms: dict[str, tuple[int, Term]] = {}
    found: dict[int, str] = {}
    for index, node in enumerate(graph.node):
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
        if node.op_type not in ("Add", "Sub") or len(node.input) != 2:
            continue
        left, right = node.input
        if (left in constants) == (right in constants):
            continue
        first = left in constants
        value, constant = (right, left) if first else (left, right)
        term = constant_term(value, _array(constants[constant]), subtracts=node.op_type == "Sub", first=first)
        if term is None:
            continue
        if value in terms and cancels(terms[value][1], term):
            found.update({terms[value][0]: _REASON, index: _REASON})
        terms[node.output[0]] = index, term
    return found


def _array(tensor: onnx.TensorProto) -> Array | None:
    return array_of(tensor) if is_apart(tensor) or not is_external(tensor) else None
