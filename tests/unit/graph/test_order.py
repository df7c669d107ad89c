"""The branch order, its cuts and the windows between them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from collage.graph.convexity import is_convex
from collage.graph.dataflow import Graph
from collage.graph.order import branch_order, cut_positions, windows
from tests.helpers.strategies import GraphBuilder, graphs, nasnet_like


def crossing(graph: Graph, order: tuple[int, ...], at: int) -> int:
    """How many values cross the position, of those that live across no more than half of the order."""
    return sum(
        1
        for value in graph.values
        if value.producer is not None
        and (begin := order.index(value.producer)) < at
        and (end := max((order.index(u) for u in graph.users[value.id]), default=-1)) >= at
        and end - begin <= len(order) / 2
    )


@given(graphs())
def test_the_order_is_topological_and_complete(graph: Graph) -> None:
    order = branch_order(graph)
    assert sorted(order) == list(range(len(graph.nodes)))
    assert all(order.index(p) < order.index(n) for n in order for p in graph.predecessors[n])


def test_the_nearer_cell_is_finished_before_branches_that_read_the_farther_one() -> None:
    graph, _ = nasnet_like(cells=3)
    order = branch_order(graph)
    cell = len(graph.nodes) // 3
    assert [node // cell for node in order] == [k for k in range(3) for _ in range(cell)]


def test_the_order_does_not_depend_on_the_recursion_limit() -> None:
    count = 5000
    build = GraphBuilder()
    value = build.input()
    for _ in range(count):
        value = build.node(value)
    graph = build.finish(value)
    assert branch_order(graph) == tuple(range(count))


@given(graphs(max_nodes=12))
def test_at_most_one_value_that_does_not_live_long_crosses_a_cut(graph: Graph) -> None:
    order = branch_order(graph)
    expected = [p for p in range(1, len(order)) if crossing(graph, order, p) <= 1]
    assert list(cut_positions(graph, order)) == expected


@given(graphs(max_nodes=12), st.integers(1, 5))
def test_long_segments_are_cut_where_they_are_narrowest(graph: Graph, longest: int) -> None:
    order = branch_order(graph)
    cuts = cut_positions(graph, order, longest=longest)
    edges = [0, *cuts, len(order)]
    assert all(b - a <= longest for a, b in pairwise(edges))
    assert set(cuts) >= set(cut_positions(graph, order))


def test_nasnet_is_cut_between_its_cells() -> None:
    graph, _ = nasnet_like(cells=6, length=4)
    cell = len(graph.nodes) // 6
    cuts = cut_positions(graph, branch_order(graph), longest=cell)
    assert {k * cell for k in range(1, 6)} <= set(cuts)


@given(graphs(max_nodes=12), st.integers(1, 64))
def test_windows_are_convex_and_dyadic(graph: Graph, longest: int) -> None:
    order = branch_order(graph)
    cuts = cut_positions(graph, order, longest=longest)
    found = windows(graph, order, cuts)
    assert all(is_convex(graph, window) for window in found)
    assert all(list(window) == sorted(set(window)) for window in found)
    assert len(set(found)) == len(found) <= 2 * (len(cuts) + 1)
    assert tuple(range(len(graph.nodes))) in found
    edges = [0, *cuts, len(order)]
    assert found[: len(edges) - 1] == tuple(tuple(sorted(order[a:b])) for a, b in pairwise(edges))
