"""Random graphs of launches."""

from __future__ import annotations

from hypothesis import strategies as st

from collage.schedule.dag import Dag


@st.composite
def dags(draw: st.DrawFn, most: int = 8) -> Dag:
    """Any graph of up to ``most`` nodes."""
    count = draw(st.integers(0, most))
    pairs = [(u, v) for v in range(count) for u in range(v)]
    return Dag.of_edges(count, [pair for pair in pairs if draw(st.booleans())])
