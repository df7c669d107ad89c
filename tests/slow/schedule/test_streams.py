"""Nimble's theorems and Opara's algorithms on random graphs, against brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from hypothesis import given, settings

from collage.schedule.dag import Dag
from collage.schedule.nimble import maximum_matching, nimble_streams
from collage.schedule.opara import opara_streams
from collage.schedule.schedule import Ordered, Schedule, check
from tests.helpers.schedule.dags import dags, maximum_logical_concurrency


def reachable(dag: Dag) -> np.ndarray:
    """Whether v must run after u, by powers of the adjacency matrix."""
    found = np.zeros((len(dag), len(dag)), bool)
    for u, v in dag.edges:
        found[u, v] = True
    for _ in range(len(dag)):
        found |= (found.astype(int) @ found.astype(int)) > 0
    return found


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All partitions of a set."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for i, part in enumerate(rest):
            yield [*rest[:i], [items[0], *part], *rest[i + 1 :]]


def synchronisations(dag: Dag, streams: Sequence[int]) -> int:
    """The least number of events that make the streams respect the graph, by trying all sets of edges."""
    wanted = reachable(dag)
    own = [(u, v) for u, v in combinations(range(len(dag)), 2) if streams[u] == streams[v]]
    crossing = [(u, v) for u, v in dag.edges if streams[u] != streams[v]]
    for count in range(len(crossing) + 1):
        for chosen in combinations(crossing, count):
            if (reachable(Dag.of_edges(len(dag), [*own, *chosen])) >= wanted).all():
                return count
    raise AssertionError("the graph itself respects the graph")


@settings(max_examples=200, deadline=None)
@given(dags(10))
def test_the_minimum_equivalent_graph_reaches_the_same_with_the_fewest_edges(dag: Dag) -> None:
    reduced = dag.minimum_equivalent()
    assert set(reduced.edges) <= set(dag.edges)
    np.testing.assert_array_equal(reachable(reduced), reachable(dag))
    for edge in reduced.edges:
        less = Dag.of_edges(len(dag), [each for each in reduced.edges if each != edge])
        assert not (reachable(less) == reachable(dag)).all()
    for v, bits in enumerate(dag.ancestors):
        assert [bool(bits >> u & 1) for u in range(len(dag))] == reachable(dag)[:, v].tolist()


@settings(max_examples=60, deadline=None)
@given(dags(6))
def test_nimble_is_concurrent_with_the_fewest_synchronisations(dag: Dag) -> None:
    """Theorems 1 to 4: every assignment of maximum logical concurrency is tried."""
    streams = nimble_streams(dag)
    assert maximum_logical_concurrency(dag, streams)
    reduced = dag.minimum_equivalent()
    matching = maximum_matching(reduced)
    assert len(set(matching.values())) == len(matching)
    mine = synchronisations(dag, streams)
    assert mine == synchronisations(reduced, streams) == len(reduced.edges) - len(matching)  # theorems 1 and 3
    for parts in partitions(range(len(dag))):
        other = [next(i for i, part in enumerate(parts) if v in part) for v in range(len(dag))]
        if maximum_logical_concurrency(dag, other):
            assert maximum_logical_concurrency(reduced, other)
            assert synchronisations(dag, other) >= mine  # theorem 4


@settings(max_examples=200, deadline=None)
@given(dags(7))
def test_events_are_the_fewest_that_are_enough(dag: Dag) -> None:
    for streams in (nimble_streams(dag), opara_streams(dag)):
        ordered = Ordered(dag, Schedule(tuple(range(len(dag))), streams))
        check(dag, ordered.schedule)
        own = [(u, v) for u, v in combinations(range(len(dag)), 2) if streams[u] == streams[v]]
        guaranteed = reachable(Dag.of_edges(len(dag), [*own, *ordered.events]))
        assert (guaranteed >= reachable(dag)).all()
        for v, bits in enumerate(ordered.before):
            assert [bool(bits >> u & 1) for u in range(len(dag))] == guaranteed[:, v].tolist()
        assert len(ordered.events) == synchronisations(dag, streams)


@settings(max_examples=200, deadline=None)
@given(dags(10))
def test_opara_follows_a_predecessor_or_begins_a_stream(dag: Dag) -> None:
    streams = opara_streams(dag)
    for v, stream in enumerate(streams):
        before = [u for u in range(v) if streams[u] == stream]
        assert not before or before[-1] in dag.predecessors[v]
        if not before:  # all its predecessors have been followed before
            assert all(any(streams[w] == streams[u] for w in range(u + 1, v)) for u in dag.predecessors[v])
    assert sorted(set(streams)) == list(range(max(streams, default=-1) + 1))
