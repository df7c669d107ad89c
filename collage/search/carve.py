"""Carving: what an engine is slow at, inside a region that it is otherwise best at.

An engine's region may hold a kernel that another backend runs much faster (a first convolution on three
channels, say). The fixed windows rarely offer just the rest of the region, so it is asked for: the part of the
region before the kernel and the part after it, on the same engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage.search.candidate import Candidate

_LEAST_GAIN = 0.01
"""Least gain, as a share of the region's cost, that is worth measuring."""


def carvings(
    order: Sequence[int], candidates: Sequence[Candidate], region: Candidate, epsilon_us: float, most: int = 3
) -> list[tuple[int, ...]]:
    """Node sets (ascending ids) to measure on the region's backend, for the ``most`` most promising kernels.

    ``order`` is a topological order: intervals of it are convex, and so are the parts of an interval. A kernel
    promises the difference between its cost on the region's own backend and on the best other one, less two
    context switches (``epsilon_us``, Eq. 2.2).
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
    """Begin and end of the nodes in the order, or (-1, -1) when they are not all next to each other."""
    at = sorted(position[node] for node in nodes)
    return (at[0], at[-1] + 1) if at[-1] - at[0] + 1 == len(at) else (-1, -1)
