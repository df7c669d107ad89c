"""Immediate dominators and post-dominators of the nodes of a dataflow graph.

Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm": on a DAG one pass in topological order is
enough, since every neighbour that a node's answer depends on is final by the time the node is visited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from collage.graph.dataflow import Graph

_ROOT = -1
"""The virtual entry (or exit): the root of the tree."""


def dominators(graph: Graph) -> tuple[int | None, ...]:
    """For each node, its immediate dominator: the nearest other node on every way from the entry to it.

    A virtual entry stands above all nodes without predecessors; None says that only it dominates the node.
    """
    return _tree(range(len(graph.nodes)), lambda node: graph.predecessors[node] or (_ROOT,))


def post_dominators(graph: Graph) -> tuple[int | None, ...]:
    """For each node, its immediate post-dominator: the nearest other node on every way from it to the exit.

    A virtual exit stands below each node that has no users or whose value the graph returns (even when that
    value is used as well); None says that only the exit post-dominates the node.
    """

    def below(node: int) -> tuple[int, ...]:
        after = graph.successors[node]
        returned = any(value in graph.output_set for value in graph.nodes[node].outputs)
        return (*after, _ROOT) if returned or not after else after

    return _tree(reversed(range(len(graph.nodes))), below)


def _tree(visit: Iterable[int], neighbours: Callable[[int], tuple[int, ...]]) -> tuple[int | None, ...]:
    """Parent of each node in the dominator tree; ``visit`` names a node after all its neighbours."""
    parent: dict[int, int] = {}
    depth = {_ROOT: 0}
    for node in visit:
        first, *rest = neighbours(node)
        common = first
        for other in rest:
            # Lowest common ancestor by depth: ids do not order the tree once the root is -1 for both
            # directions, depths always do.
            while common != other:
                if depth[common] < depth[other]:
                    other = parent[other]
                else:
                    common = parent[common]
        parent[node] = common
        depth[node] = depth[common] + 1
    return tuple(None if parent[node] == _ROOT else parent[node] for node in range(len(parent)))
