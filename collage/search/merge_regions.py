"""Merging regions: neighbouring parts that the search gave to the same engine may be faster as one region.

The additive model (Eq. 2.2) prices each part by itself. With two neighbours in one region the engine saves a launch and
keeps its own layout between them. So the merged region is measured and offered to the next round of the search.
"""

from __future__ import annotations

from collections.abc import Collection

from collage.search.candidate import Candidate
from collage.search.placement import Placement


def region_merges(
    placement: Placement, engines: Collection[str], free: Collection[str]
) -> list[tuple[tuple[int, ...], str]]:
    """Node sets (ascending ids) and backends of the runs of neighbours on the same engine.

    Neighbours follow each other in launch order, which is topological. So a merged region is convex, and the placement
    with it has no circle. Parts on backends in ``free`` (views) launch nothing; one inside a run is merged with it.
    """
    found: list[tuple[tuple[int, ...], str]] = []
    run: list[Candidate] = []
    waiting: list[Candidate] = []

    def close() -> None:
        if sum(1 for c in run if c.backend not in free) > 1:
            nodes = tuple(sorted(node for c in run for node in c.nodes))
            found.append((nodes, run[0].backend))
        run.clear()
        waiting.clear()

    for candidate in placement.candidates:
        if candidate.backend in free:
            waiting.append(candidate)
        elif run and candidate.backend == run[0].backend:
            run.extend([*waiting, candidate])
            waiting.clear()
        else:
            close()
            if candidate.backend in engines:
                run.append(candidate)
    close()
    return found
