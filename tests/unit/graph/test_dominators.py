"""Immediate post-dominators against the definition."""

from __future__ import annotations

from hypothesis import given

from collage.graph.dataflow import Graph
from collage.graph.dominators import post_dominators
from tests.helpers.strategies import graphs

EXIT = -1


def naive(count: int, after: dict[int, set[int]], node: int) -> int | None:
    """The post-dominator of ``node`` that all its other post-dominators post-dominate."""

    def reaches_exit(start: int, removed: int | None) -> bool:
        seen, stack = {start}, [start]
        while stack:
            for other in after.get(stack.pop(), set()):
                if other == EXIT:
                    return True
                if other != removed and other not in seen:
                    seen.add(other)
                    stack.append(other)
        return False

    over = {n: {d for d in range(count) if d != n and not reaches_exit(n, d)} for n in range(count)}
    nearest = [d for d in over[node] if over[node] - {d} <= over[d]]
    assert len(nearest) <= 1
    return nearest[0] if nearest else None


def edges_to_exit(graph: Graph) -> dict[int, set[int]]:
    after: dict[int, set[int]] = {}
    for node in graph.nodes:
        users = {user for value in node.outputs for user in graph.users[value]}
        if not users or set(node.outputs) & set(graph.outputs):
            users.add(EXIT)
        after[node.id] = users
    return after


@given(graphs())
def test_post_dominators_follow_the_definition(graph: Graph) -> None:
    after = edges_to_exit(graph)
    count = len(graph.nodes)
    assert post_dominators(graph) == tuple(naive(count, after, n) for n in range(count))
