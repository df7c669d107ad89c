"""Immediate post-dominators of the nodes of a dataflow graph.

The algorithm is that of Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm". On a DAG one pass in reverse
topological order is enough, since all users of a node are visited before it.
"""

from __future__ import annotations

from collage.graph.dataflow import Graph

_EXIT = -1
"""The virtual exit: the root of the tree."""


def post_dominators(graph: Graph) -> tuple[int | None, ...]:
    """For each node, its immediate post-dominator: the nearest other node on every way from it to the exit.

    A virtual exit is below each node that has no users or whose value the graph returns (even when that value is used
    as well); None means that only this exit post-dominates the node.
    """
    parent: dict[int, int] = {}
    depth = {_EXIT: 0}
    for node in reversed(range(len(graph.nodes))):
        after = graph.successors[node]
        returned = any(value in graph.output_set for value in graph.nodes[node].outputs)
        common, *others = (*after, _EXIT) if returned or not after else after
        for other in others:
            # The lowest common ancestor is found by depth: ids do not order the tree, since the root is -1.
            while common != other:
                if depth[common] < depth[other]:
                    other = parent[other]
                else:
                    common = parent[common]
        parent[node], depth[node] = common, depth[common] + 1
    return tuple(None if parent[node] == _EXIT else parent[node] for node in range(len(parent)))
