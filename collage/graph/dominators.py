"""Immediate dominators and post-dominators of the nodes of a dataflow graph.

The algorithm is that of Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm". On a DAG one pass in
topological order is enough, because all neighbours that a node's dominator depends on are visited before the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from collage.graph.dataflow import Graph

_ROOT = -1
"""The virtual entry (or exit): the root of the tree."""


def dominators(graph: Graph) -> tuple[int | None, ...]:
    """For each node, its immediate dominator: the nearest other node on every way from the entry to it.

    A virtual entry is above all nodes without predecessors; None means that only this entry dominates the node.
    """
    return _tree(range(len(graph.nodes)), lambda node: graph.predecessors[node] or (_ROOT,))


def post_dominators(graph: Graph) -> tuple[int | None, ...]:
    """For each node, its immediate post-dominator: the nearest other node on every way from it to the exit.

    A virtual exit is below each node that has no users or whose value the graph returns (even when that value is used
    as well); None means that only this exit post-dominates the node.
    """

    def below(node: int) -> tuple[int, ...]:
        after = graph.successors[node]
        returned = any(value in graph.output_set for value in graph.nodes[node].outputs)
        return (*after, _ROOT) if returned or not after else after

    return _tree(reversed(range(len(graph.nodes))), below)


def _tree(visit: Iterable[int], neighbours: Callable[[int], tuple[int, ...]]) -> tuple[int | None, ...]:
    """The parent of each node in the dominator tree; ``visit`` has each node after all its ``neighbours``."""
    parent: dict[int, int] = {}
    depth = {_ROOT: 0}
    for node in visit:
        first, *rest = neighbours(node)
        common = first
        for other in rest:
            # The lowest common ancestor is found by depth: ids do not order the tree in both directions, because the
            # root is -1 in both, but depths do.
            while common != other:
                if depth[common] < depth[other]:
                    other = parent[other]
                else:
                    common = parent[common]
        parent[node] = common
        depth[node] = depth[common] + 1
    return tuple(None if parent[node] == _ROOT else parent[node] for node in range(len(parent)))
