"""Random graphs of launches, and a property of their streams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from hypothesis import strategies as st

from collage.schedule.dag import Dag


@st.composite
def dags(draw: st.DrawFn, most: int = 8) -> Dag:
    """Any graph of up to ``most`` nodes."""
    count = draw(st.integers(0, most))
    pairs = [(u, v) for v in range(count) for u in range(v)]
    return Dag.of_edges(count, [pair for pair in pairs if draw(st.booleans())])


def maximum_logical_concurrency(dag: Dag, streams: Sequence[int]) -> bool:
    """Whether nodes that do not depend on each other are on different streams (Nimble, section 4.2)."""
    return all(streams[u] != streams[v] for u, v in combinations(range(len(dag)), 2) if dag.independent(u, v))
