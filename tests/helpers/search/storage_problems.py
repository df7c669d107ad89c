"""Random searches whose candidates read and write several storages."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from hypothesis import strategies as st

from collage.graph.storage import BLOCKED, CHANNELS_LAST, PLAIN
from collage.kernel.transform import LayoutTransform
from collage.search.candidate import Candidate
from tests.helpers.search.brute_force import Case, edges
from tests.helpers.storage_formats import COLUMNS, DEVICE, DEVICE_COLUMNS
from tests.helpers.strategies import problems

OTHERS = [(CHANNELS_LAST, BLOCKED), (BLOCKED, COLUMNS), (COLUMNS, DEVICE), (DEVICE, DEVICE_COLUMNS)]
"""What a problem has beside the plain storage."""


@st.composite
def storage_problems(draw: st.DrawFn) -> Case:
    """Problems whose candidates come in several storages; some transforms cannot be made."""
    graph, plain = draw(problems(max_nodes=6))
    known = (PLAIN, *draw(st.sampled_from(OTHERS)))
    candidates: list[Candidate] = []
    for each in plain:
        taken, given = edges(graph, each)
        storages = st.sampled_from(known)
        for _ in range(draw(st.integers(1, 2))):
            reads = [(v, draw(storages)) for v in taken]
            writes = [(v, draw(storages)) for v in given]
            candidates.append(
                replace(
                    each,
                    cost_us=draw(st.integers(0, 16)) / 4,
                    reads=tuple((v, storage) for v, storage in reads if storage != PLAIN),
                    writes=tuple((v, storage) for v, storage in writes if storage != PLAIN),
                )
            )
    costs = {
        (value.id, LayoutTransform(value.type, source, target)): draw(st.integers(0, 8)) / 4
        for value in graph.values
        for source, target in permutations(known, 2)
        if draw(st.integers(0, 9))
    }
    return graph, candidates, costs
