"""Operators that make whole numbers or choices of others, where the last bit of a number may decide.

``frontend.rounded_quotients`` tells the same of ONNX nodes, for engines that run these.
"""

from __future__ import annotations

from collage.graph.dataflow import Graph, Node

_DECIDING = frozenset(
    "floor ceil round trunc mod floor_mod floor_divide equal not_equal greater greater_equal less less_equal".split()
)
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
            if reader.op in _DECIDING or (
                reader.op == "astype" and "int" in graph.type_of(reader.outputs[0]).dtype
            ):
                return True
            if reader.op in _KEEPING:
                pending.append(number)
    return False
