"""Trees of many leaves as several trees of few, whose leaf values add up to the same sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collage.backends.tables_kernels.ensemble import LEAF, Array, Ensemble


def cut(e: Ensemble, leaves: int, most: int) -> Ensemble:
    """The ensemble, of whose trees those of more than ``leaves`` and up to ``most`` leaves are cut into parts.

    A part has some neighbouring leaves of its tree, and leaves without a weight for the subtrees beside the paths to
    them: ``leaves`` in all. The parts of a tree stand in its place, in order. A row is at one leaf with a weight, so
    that sums keep their bits.
    """
    order = e.order
    count = order.leaves[e.roots]
    wanted = (count > leaves) & (count <= most) & (2 * order.depth < leaves // 2)
    if not wanted.any():
        return e
    nodes_by_tree = np.argsort(order.tree, kind="stable")
    begin = np.searchsorted(order.tree[nodes_by_tree], np.arange(len(e.roots) + 1))
    more_left, more_right = _turns(e)
    taken: list[Array] = []  # for each part the nodes that it copies, and -1 for its leaves without a weight
    left, right, roots = [e.left], [e.right], []
    size, place = len(e.kind), np.full(len(e.kind), -1, np.int64)
    for tree, root in enumerate(e.roots.tolist()):
        if not wanted[tree]:
            roots.append(root)
            continue
        nodes = nodes_by_tree[begin[tree] : begin[tree + 1]]
        first, end = order.first[nodes], order.first[nodes] + order.leaves[nodes]
        leaf = nodes[e.kind[nodes] == LEAF]
        leaf = leaf[np.argsort(order.first[leaf])]
        for start, stop in _ranges(more_right[leaf], more_left[leaf], leaves):
            kept = nodes[(first < stop) & (end > start)]
            place[kept] = size + np.arange(len(kept))
            inner = e.kind[kept] != LEAF
            sides = [np.where(inner, place[side[kept]], -1) for side in (e.left, e.right)]
            outside = [inner & (side < 0) for side in sides]
            bare = size + len(kept)
            for side, missing in zip(sides, outside, strict=True):
                side[missing] = bare + np.arange(np.count_nonzero(missing))
                bare += np.count_nonzero(missing)
            roots.append(int(place[root]))
            place[kept] = -1
            taken += [kept, np.full(bare - size - len(kept), -1)]
            for found, side in zip((left, right), sides, strict=True):
                found += [side, np.full(bare - size - len(kept), -1)]
            size = bare
    source = np.concatenate([np.arange(len(e.kind)), *taken])
    kind = np.where(source < 0, LEAF, e.kind[source])
    # The weights of a leaf are its copy's, which is in one part; the cut trees have none.
    copy = np.arange(len(e.kind))
    copies = len(e.kind) + np.flatnonzero(source[len(e.kind) :] >= 0)
    copy[source[copies]] = copies
    return replace(
        e,
        kind=kind,
        feature=e.feature[source],
        threshold=e.threshold[source],
        nan_right=e.nan_right[source],
        left=np.concatenate(left),
        right=np.concatenate(right),
        members=e.members[source],
        roots=np.array(roots, np.int64),
        weight_node=copy[e.weight_node],
    )


def _turns(e: Ensemble) -> tuple[Array, Array]:
    """How often the way from the root to each node goes to the left, and to the right."""
    left, right = np.zeros(len(e.kind), np.int64), np.zeros(len(e.kind), np.int64)
    nodes = e.roots
    while len(nodes := nodes[e.kind[nodes] != LEAF]):
        for turns, side, other in ((left, e.left, e.right), (right, e.right, e.left)):
            turns[side[nodes]], turns[other[nodes]] = turns[nodes] + 1, turns[nodes]
        nodes = np.concatenate([e.left[nodes], e.right[nodes]])
    return left, right


def _ranges(before: Array, behind: Array, most: int) -> list[tuple[int, int]]:
    """Neighbouring leaves, of a tree in order, with the leaves that stand for those ``before`` and ``behind`` them."""
    found, start = [], 0
    while start < len(before):
        last = np.arange(start, min(start + most, len(before)))
        stop = int(last[last - start + 1 + before[start] + behind[last] <= most][-1]) + 1
        found.append((start, stop))
        start = stop
    return found
