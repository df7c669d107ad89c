"""Nimble's stream assignment (Algorithm 1): as concurrent as the graph allows, with the fewest synchronisations."""

from __future__ import annotations

from collage.schedule.dag import Dag


def nimble_streams(dag: Dag) -> tuple[int, ...]:
    """The stream of each node, numbered from 0 in the order in which the streams begin.

    No two independent nodes share a stream (maximum logical concurrency), and among such assignments none needs
    fewer synchronisations (Theorem 4): |E'| - |M|, with the edges E' of the minimum equivalent graph and a maximum
    matching M of it (Theorem 3). O(V E) for the graph, O(E' sqrt(V)) for the matching.
    """
    matched = maximum_matching(dag.minimum_equivalent())
    streams: list[int] = []
    count = 0
    for v in range(len(dag)):
        before = matched.get(v)
        streams.append(count if before is None else streams[before])
        count += before is None
    return tuple(streams)


def maximum_matching(dag: Dag) -> dict[int, int]:
    """A maximum matching of the bipartite graph of step 2: for each matched node v, the u with (u, v) in the matching.

    It is the same in each process: the nodes are numbers (0 to n - 1, and from n on), whose hashes do not change.
    """
    import networkx  # here, since it takes a tenth of a second, and few schedules need it

    graph = networkx.Graph()
    count = len(dag)
    graph.add_nodes_from(range(count))
    graph.add_edges_from((u, count + v) for u, v in dag.edges)
    found = networkx.bipartite.hopcroft_karp_matching(graph, range(count))
    return {v - count: u for u, v in found.items() if u < count}
