"""Other variants: what a placement's kernels could be exchanged for, all at once."""

from __future__ import annotations

from collections.abc import Sequence

from collage.search.candidate import Candidate
from collage.search.placement import Placement

_MUCH_SLOWER = 1.3
"""A kernel that takes so many times as long alone is not worth a try in the network."""


def others(placement: Placement, candidates: Sequence[Candidate]) -> list[Candidate] | None:
    """For each kernel of the placement the next best one of the same nodes and storages, or itself; None if all are."""
    alike: dict[tuple[object, ...], list[Candidate]] = {}
    for each in candidates:
        alike.setdefault((each.nodes, each.reads, each.writes), []).append(each)
    found, changed = [], False
    for kernel in placement.candidates:
        rivals = [
            c
            for c in alike.get((kernel.nodes, kernel.reads, kernel.writes), ())
            if (c.backend, c.variant) != (kernel.backend, kernel.variant)
        ]
        best = min(rivals, key=lambda c: c.cost_us, default=None)
        if best is not None and best.cost_us <= _MUCH_SLOWER * kernel.cost_us:
            found.append(best)
            changed = True
        else:
            found.append(kernel)
    return found if changed else None
