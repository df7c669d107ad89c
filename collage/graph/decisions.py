"""Operators that make whole numbers or choices of others, where the last bit of a number may decide.

Quotients that come before them are divided, and not multiplied by reciprocals. Sums beside them keep their order, and
two constants are added, or multiplied, one after the other.

``frontend.rounded_quotients`` tells the same of ONNX nodes, for engines that run these.
"""

from __future__ import annotations

from collections.abc import Iterable

from collage.graph.dataflow import Graph, Node
from collage.graph.rounding_sums import rounds_by_sum

_DECIDING = frozenset(
    "floor ceil round trunc mod floor_mod floor_divide equal not_equal greater greater_equal less less_equal "
    "sign".split()
)
_ALIKE = {"add": "sum", "subtract": "sum", "multiply": "product"}
_KEEPING = frozenset(
    "add subtract multiply divide negative abs nn.relu nn.relu6 clip maximum minimum where reshape flatten squeeze "
    "expand_dims permute_dims broadcast_to concat stack split strided_slice take gather_elements gather_nd repeat tile "
    "flip".split()
)
"""Operators whose results may be whole numbers, or equal to a bound, where those of their operands are."""


def decides(graph: Graph, node: Node) -> bool:
    """Whether what the node makes is rounded or compared, perhaps after sums, products and choices."""
    pending, seen = [node.id], {node.id}
    while pending:
        for number in graph.successors[pending.pop()]:
            if number in seen:
                continue
            seen.add(number)
            reader = graph.nodes[number]
            if reader.op in _DECIDING or (reader.op == "astype" and _is_whole(graph, reader)):
                return True
            if reader.op in _KEEPING:
                pending.append(number)
    return False


def as_written(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Whether the arithmetic of these nodes has to be done as it is written, since the last bit matters."""
    return any(
        rounds_by_sum(graph, node)
        or ((node.op == "divide" or _goes_on(graph, node)) and decides(graph, node))
        for node in nodes
    )


def _goes_on(graph: Graph, node: Node) -> bool:
    """Whether the node adds a constant to what one was added to, or multiplies again, which could be done at once."""
    value = _only_value(graph, node)
    producer = None if value is None else graph.values[value].producer
    if producer is None or _only_value(graph, graph.nodes[producer]) is None:
        return False
    return _ALIKE[graph.nodes[producer].op] == _ALIKE[node.op]


def _only_value(graph: Graph, node: Node) -> int | None:
    """The operand of a sum or product with a constant; None for any other node."""
    if node.op not in _ALIKE:
        return None
    values = [value for value in node.inputs if not graph.is_constant(value)]
    return values[0] if len(values) == 1 else None


def _is_whole(graph: Graph, node: Node) -> bool:
    dtype = graph.type_of(node.outputs[0]).dtype
    return "int" in dtype or dtype == "bool"
