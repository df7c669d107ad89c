"""Block graphs, clusters and the series-parallel decomposition."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.errors import UsageError
from collage.graphpipe.cluster import Cluster, Link
from collage.graphpipe.graph import Atom, Block, BlockGraph, Edge, Parallel, Series, decompose
from scripts.lib.graphpipe.random_graphs import series_parallel


def graph_of(count: int, *edges: tuple[int, int]) -> BlockGraph:
    blocks = tuple(Block(str(at), (1.0, 2.0), (2.0, 4.0), 0.1, 3.0, 5.0) for at in range(count))
    return BlockGraph("test", blocks, tuple(Edge(x, y, 1.0) for x, y in edges))


def text(series: Series) -> str:
    units = (
        "+".join(map(str, unit.blocks)) if isinstance(unit, Atom) else f"({' | '.join(map(text, unit.children))})"
        for unit in series.units
    )
    return " ".join(units)


@pytest.mark.parametrize(
    ("count", "edges", "expected"),
    [
        (1, [], "0"),
        (3, [(0, 1), (1, 2)], "0 1 2"),
        (4, [(0, 1), (0, 2), (1, 3), (2, 3)], "0 (1 | 2) 3"),
        (3, [(0, 1), (1, 2), (0, 2)], "0 ( | 1) 2"),
        (2, [], "(0 | 1)"),
        (6, [(0, 1), (1, 2), (2, 5), (1, 3), (3, 5), (0, 4), (4, 5)], "0 (1 (2 | 3) | 4) 5"),
    ],
)
def test_decompose(count: int, edges: list[tuple[int, int]], expected: str) -> None:
    found = decompose(graph_of(count, *edges))
    assert text(found.root) == expected
    assert found.cores == ()


def test_only_the_core_that_is_not_series_parallel_becomes_one_atom() -> None:
    bridge = [(1, 2), (1, 3), (2, 3), (2, 4), (3, 4)]
    found = decompose(graph_of(7, (0, 1), *bridge, (4, 6), (0, 5), (5, 6)))
    assert text(found.root) == "0 (1 2+3 4 | 5) 6"
    assert found.cores == ((2, 3),)


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_random_series_parallel_graphs_have_no_core_and_each_block_once(seed: int, count: int) -> None:
    edges = series_parallel(random.Random(seed), count)
    found = decompose(graph_of(count, *((each.source, each.target) for each in edges)))
    assert found.cores == ()
    assert found.root.blocks == tuple(range(count))
    assert precedence(found.root)[0] == reachable(count, edges)


def reachable(count: int, edges: list[Edge]) -> set[tuple[int, int]]:
    after: list[set[int]] = [set() for _ in range(count)]
    for at in reversed(range(count)):
        for edge in edges:
            if edge.source == at:
                after[at] |= {edge.target} | after[edge.target]
    return {(at, other) for at in range(count) for other in after[at]}


def precedence(series: Series) -> tuple[set[tuple[int, int]], tuple[int, ...]]:
    """The pairs of blocks of which one is before the other by the tree, and all blocks."""
    pairs: set[tuple[int, int]] = set()
    before: list[int] = []
    for unit in series.units:
        blocks: tuple[int, ...] = unit.blocks
        if isinstance(unit, Parallel):
            for child in unit.children:
                pairs |= precedence(child)[0]
        pairs |= {(one, other) for one in before for other in blocks}
        before += blocks
    return pairs, tuple(before)


def test_a_graph_survives_json() -> None:
    graph = graph_of(3, (0, 1), (0, 2))
    assert BlockGraph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "no block graph"),
        ({"edges": [[1, 0, 2]]}, "does not go from one block to a later one"),
        ({"edges": [[0, 1, 2], [0, 1, 3]]}, "two edges join the same blocks"),
        ({"edges": [[0, 1]]}, "malformed"),
        ({"blocks": []}, "at least one block"),
        ({"blocks": [{"name": "a", "forward_s": [1], "backward_s": [1, 2]}]}, "other micro-batches"),
        ({"blocks": [{"name": "a", "forward_s": [-1], "backward_s": [1]}]}, "negative or not finite"),
        ({"blocks": [{"forward_s": [1], "backward_s": [1]}]}, "KeyError"),
    ],
)
def test_malformed_graphs_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BlockGraph.from_json({**graph_of(2, (0, 1)).to_json(), **change})


CLUSTER = """
devices = 8
memory_gb = 16
node_devices = 4
[inner]
latency_us = 10
bandwidth_gb_s = 45
[outer]
latency_us = 20
bandwidth_gb_s = 12.5
"""


def test_a_cluster_is_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER)
    found = Cluster.read(file)
    assert found == Cluster(8, 16e9, Link(10e-6, 45e9), Link(20e-6, 12.5e9), 4)
    assert Cluster.from_values(found.to_json()).outer.bandwidth == 12.5e9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices = ", "no TOML file"),
        (CLUSTER.replace("memory_gb", "memory"), "unknown key of a cluster: memory"),
        ("devices = 4", "needs memory_gb, inner"),
        (CLUSTER.replace("latency_us = 10", ""), "latency_us"),
        (CLUSTER.replace("devices = 8", "devices = 0"), "above 0"),
    ],
)
def test_malformed_clusters_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "cluster.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        Cluster.read(tmp_path / "cluster.toml")


def test_a_ring_sends_each_part_twice_around() -> None:
    assert Link(1.0, 10.0).ring_s(80.0, 4) == pytest.approx(6 * (1 + 20 / 10))
    assert Link(1.0, 10.0).ring_s(80.0, 1) == 0


def test_stages_are_placed_in_one_node_if_there_is_room() -> None:
    cluster = Cluster(8, 1.0, Link(0, 1), Link(0, 1), 4)
    assert cluster.placed([1, 4, 2, 1]) == [(0,), (4, 5, 6, 7), (1, 2), (3,)]
    assert cluster.placed([8]) == [tuple(range(8))]
    assert cluster.link(0, 3) is cluster.inner
    assert cluster.link(3, 4) is cluster.outer
    with pytest.raises(UsageError, match="9 devices"):
        cluster.placed([8, 1])
