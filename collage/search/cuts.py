"""Cuts through what a compiler fuses, where nobody else has a kernel that begins or ends there.

A function of seven elementwise operators, as an activation that is spelt out, has 28 runs that a compiler could make a
kernel of. A kernel of one part is only of use beside another one for the rest. Where only the compiler has any, both
are its own, and what it makes of the whole reads and writes less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from collage.graph.dataflow import Graph, Node, OpKind

_ELEMENTWISE = (OpKind.ELEMWISE, OpKind.BROADCAST)

Nodes = tuple[int, ...]


def needless_cuts(
    graph: Graph, own: Collection[Nodes], others: Collection[Nodes], known: Collection[Nodes]
) -> set[Nodes]:
    """The subgraphs among a compiler's ``own`` that cut through a function which it has fused.

    Such a function is elementwise operators that are connected and make values of one size, and of which each subgraph
    of ``others`` has all or none. One of the subgraphs that are ``known`` to have a kernel of the compiler's contains
    it whole.
    """
    whole = [frozenset(nodes) for nodes in known]
    functions = [
        function
        for function in _functions(graph, _containing(others))
        if len(function) > 1 and any(function <= nodes for nodes in whole)
    ]
    function_of = {node: function for function in functions for node in function}
    return {nodes for nodes in own if _cuts(frozenset(nodes), function_of)}


def _cuts(nodes: frozenset[int], function_of: dict[int, frozenset[int]]) -> bool:
    return any(not function_of[node] <= nodes for node in nodes if node in function_of)


def _containing(others: Iterable[Nodes]) -> dict[int, set[int]]:
    """The others' subgraphs, by number, that contain each node."""
    found: dict[int, set[int]] = {}
    for number, nodes in enumerate(others):
        for node in nodes:
            found.setdefault(node, set()).add(number)
    return found


def _functions(graph: Graph, containing: dict[int, set[int]]) -> Iterator[frozenset[int]]:
    """Elementwise operators that are connected, make values of one size, and are contained in the same subgraphs."""
    home: dict[int, set[int]] = {}
    for node in filter(_is_elementwise, graph.nodes):
        mine = home[node.id] = {node.id}
        for value in node.inputs:
            before = graph.values[value].producer
            if before not in home or _size(graph, graph.nodes[before]) != _size(graph, node):
                continue
            if containing.get(before) == containing.get(node.id) and home[before] is not mine:
                mine |= home[before]
                home.update(dict.fromkeys(mine, mine))
    yield from {frozenset(nodes) for nodes in home.values()}


def _is_elementwise(node: Node) -> bool:
    return node.kind in _ELEMENTWISE and len(node.outputs) == 1


def _size(graph: Graph, node: Node) -> int:
    kind = graph.type_of(node.outputs[0])
    return getattr(kind, "size", -1)
