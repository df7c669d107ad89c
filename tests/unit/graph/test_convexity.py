"""Convex sets, what escapes from them, and the order of the parts of a partition, against the definitions."""

from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from collage.graph.convexity import (
    CyclicPlacementError,
    Reachability,
    escaping,
    is_convex,
    nodes_between,
    quotient_order,
)
from collage.graph.dataflow import Graph
from tests.helpers.strategies import graph_of, graphs


@st.composite
def graph_and_set(draw: st.DrawFn) -> tuple[Graph, set[int]]:
    graph = draw(graphs())
    return graph, draw(st.sets(st.integers(0, len(graph.nodes) - 1), max_size=5))


@st.composite
def graph_and_parts(draw: st.DrawFn) -> tuple[Graph, list[list[int]]]:
    graph = draw(graphs())
    parts: list[list[int]] = [[] for _ in range(4)]
    for node in range(len(graph.nodes)):
        parts[draw(st.integers(0, 3))].append(node)
    return graph, [part for part in parts if part]


def descendants(graph: Graph, node: int) -> set[int]:
    found: set[int] = set()
    stack = [node]
    while stack:
        for user in graph.successors[stack.pop()]:
            if user not in found:
                found.add(user)
                stack.append(user)
    return found


def naive_closure(graph: Graph, nodes: set[int]) -> set[int]:
    between = {
        n
        for n in range(len(graph.nodes))
        if descendants(graph, n) & nodes and any(n in descendants(graph, s) for s in nodes)
    }
    return nodes | between


@given(graph_and_set())
def test_closure_and_convexity_follow_the_definition(case: tuple[Graph, set[int]]) -> None:
    graph, nodes = case
    expected = naive_closure(graph, nodes)
    reach = Reachability.of(graph)
    assert reach.members(reach.closure(nodes)) == tuple(sorted(expected))
    assert is_convex(graph, nodes) == is_convex(graph, nodes, reach) == (expected == nodes)
    assert is_convex(graph, expected)


@given(graphs())
def test_nodes_between_are_those_on_a_path(graph: Graph) -> None:
    reach = Reachability.of(graph)
    for src in range(len(graph.nodes)):
        for sink in range(len(graph.nodes)):
            down = descendants(graph, src) | {src}
            expected = tuple(n for n in sorted(down) if sink in descendants(graph, n) | {n})
            assert nodes_between(graph, src, sink) == expected
            assert nodes_between(graph, src, sink, reach) == expected


@given(graph_and_set())
def test_escaping_values_are_read_outside_or_returned(case: tuple[Graph, set[int]]) -> None:
    graph, nodes = case
    expected = [
        value.id
        for value in graph.values
        if value.producer in nodes and (value.id in graph.outputs or set(graph.users[value.id]) - nodes)
    ]
    assert list(escaping(graph, nodes)) == expected


@given(graph_and_parts())
def test_parts_are_ordered_or_a_circle_is_shown(case: tuple[Graph, list[list[int]]]) -> None:
    graph, parts = case
    part_of = {node: index for index, part in enumerate(parts) for node in part}
    edges = {
        (part_of[before], part_of[node])
        for node in part_of
        for before in graph.predecessors[node]
        if part_of[before] != part_of[node]
    }
    try:
        order = quotient_order(graph, parts)
    except CyclicPlacementError as error:
        event("circle")
        cycle = error.cycle
        assert len(set(cycle)) == len(cycle) >= 2
        assert all(edge in edges for edge in zip(cycle, (*cycle[1:], cycle[0]), strict=True))
    else:
        event("order")
        assert sorted(order) == list(range(len(parts)))
        assert all(order.index(a) < order.index(b) for a, b in edges)


def test_a_circle_may_pass_through_nodes_in_no_part() -> None:
    graph = graph_of([(0, 1), (1, 2)], 3)
    with pytest.raises(CyclicPlacementError) as caught:
        quotient_order(graph, [[0, 2]])
    assert caught.value.cycle == (0,)
    assert quotient_order(graph, [[2], [0]]) == [1, 0]


def test_overlapping_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="node 1 is in the parts 0 and 1"):
        quotient_order(graph_of([(0, 1)], 2), [[0, 1], [1]])
