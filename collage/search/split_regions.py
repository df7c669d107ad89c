"""Splitting regions: an engine's region may hold operators that another backend runs much faster.

One example is a first convolution on three channels. The fixed windows of operators rarely offer just the rest of the
region. So the part of the region before these operators and the part after them are measured on the same engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage.search.candidate import Candidate

_LEAST_GAIN = 0.01
"""Least gain, as a share of the region's cost, that is worth measuring."""


def region_splits(
    order: Sequence[int], candidates: Sequence[Candidate], region: Candidate, epsilon_us: float, most: int = 3
) -> list[tuple[int, ...]]:
    """Node sets (ascending ids) to measure on the region's backend, for the ``most`` most promising kernels in it.

    ``order`` is a topological order, so its intervals are convex, and so are the parts of an interval. The promised
    gain of a kernel is the difference between its cost on the region's own backend and its cost on the best other one,
    less two context switches (``epsilon_us`` microseconds each, Eq. 2.2).
    """
    position = {node: at for at, node in enumerate(order)}
    begin, end = _interval(position, region.nodes)
    if begin < 0:
        return []
    inside = set(region.nodes)
    own = {c.nodes: c.cost_us for c in candidates if c.backend == region.backend}
    others: dict[tuple[int, ...], float] = {}
    for c in candidates:
        if c.backend != region.backend and c.nodes in own and len(c.nodes) < len(inside):
            others[c.nodes] = min(others.get(c.nodes, float("inf")), c.cost_us)
    promising: list[tuple[float, tuple[int, ...]]] = []
    for nodes, cost in others.items():
        gain = own[nodes] - cost - 2 * epsilon_us
        if gain >= _LEAST_GAIN * region.cost_us and inside.issuperset(nodes):
            promising.append((-gain, nodes))
    found: dict[tuple[int, ...], None] = {}
    for _, nodes in sorted(promising):
        first, last = _interval(position, nodes)
        if first < 0:
            continue
        for part in (order[begin:first], order[last:end]):
            if part:
                found[tuple(sorted(part))] = None
        most -= 1
        if most == 0:
            break
    return list(found)


def _interval(position: dict[int, int], nodes: Sequence[int]) -> tuple[int, int]:
    """The begin and end of the nodes in the order, or (-1, -1) when they are not all next to each other."""
    at = sorted(position[node] for node in nodes)
    return (at[0], at[-1] + 1) if at[-1] - at[0] + 1 == len(at) else (-1, -1)
