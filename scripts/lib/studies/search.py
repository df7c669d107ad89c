"""The op-level search on a graph like NASNet-A's, against the exact solver in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from collage.graph.convexity import Reachability, is_convex
from collage.graph.dataflow import Graph
from collage.search.candidate import Candidate
from collage.search.dp import place
from collage.search.exact import place_exact
from tests.strategies import nasnet_like

ROUNDS = 5
EPSILON_US = 2.0


def time_search(cells: int, *, horizontal: bool) -> dict[str, Any]:
    """The median seconds of each part, and the results of both solvers. ``horizontal`` adds pairs across branches."""
    graph, candidates = nasnet_like(cells, horizontal=horizontal)
    placement = place(graph, candidates, EPSILON_US)
    exact = place_exact(graph, candidates, EPSILON_US)
    return {
        "nodes": len(graph.nodes),
        "candidates": len(candidates),
        "horizontal": horizontal,
        "convexity_s": _seconds(_convexity, graph, candidates),
        "dp_s": _seconds(place, graph, candidates, EPSILON_US),
        "exact_s": _seconds(place_exact, graph, candidates, EPSILON_US),
        "dp_us": placement.predicted_us,
        "exact_us": exact.predicted_us,
        "regions": len(placement.candidates),
        "exact": placement.exact,
    }


def _seconds(work: Callable[..., object], *args: object) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = perf_counter()
        work(*args)
        times.append(perf_counter() - begin)
    return median(times)


def _convexity(graph: Graph, candidates: Sequence[Candidate]) -> list[bool]:
    reach = Reachability.of(graph)
    return [is_convex(graph, candidate.nodes, reach) for candidate in candidates]
