"""Ensembles as arrays for the kernels: columns of bins, nodes in order, and leaf values (see `native/kernels/table.h`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.backends.tables_kernels.ensemble import ABOVE, LEAF, MEMBER, Array, Ensemble
from collage.native.table import (
    BLOCK,
    CHUNK,
    DENSE,
    LANES,
    NARROW_WALK,
    NODE,
    SYMMETRIC,
    TREE,
    WALKED,
    WIDE_WALK,
    Column,
    TableProgram,
    bins_struct,
    trees_struct,
)

_THRESHOLDS = 255
"""The most thresholds of a column of bins."""
_MOST_DENSE = 256
"""The most leaves of a tree that is visited whole: positions have 8 bits."""
_MOST_LANES = 256
"""The most columns of bins that one row is looked up in."""
_PLANES = (64, 128, 256)


@dataclass(frozen=True)
class Splits:
    """Columns of numbers that nodes compare, and the places of nodes among their thresholds.

    ``keys``: [column], feature, whether NaN is high, and the set or -1. ``column`` and ``rank``: [node], the node's
    column and the place of its threshold among the column's ``thresholds``, which are in order.
    """

    keys: Sequence[tuple[int, bool, int]]
    column: Array
    rank: Array
    thresholds: Sequence[Array]


def splits_of(e: Ensemble) -> Splits:
    """The columns that the ensemble's inner nodes compare."""
    inner = np.flatnonzero((e.kind != LEAF) & (e.order.tree >= 0))
    member = e.kind[inner] == MEMBER
    # A set's column is 1 for members: what NaN is follows from the column alone.
    keys = np.stack([e.feature[inner], e.nan_right[inner], np.where(member, e.members[inner], -1)], 1).astype(np.int64)
    threshold = np.where(member, e.threshold.dtype.type(0.5), e.threshold[inner])
    named, column = np.unique(keys, axis=0, return_inverse=True)
    column = column.reshape(-1)
    order = np.lexsort((threshold, column))
    c, t = column[order], threshold[order]
    new = np.ones(len(order), bool)
    new[1:] = (c[1:] != c[:-1]) | (t[1:] != t[:-1])
    place = np.cumsum(new) - 1
    begin = np.searchsorted(c[new], np.arange(len(named) + 1))
    rank = np.zeros(len(e.kind), np.int64)
    rank[inner[order]] = place - begin[c]
    found = np.full(len(e.kind), -1, np.int64)
    found[inner] = column
    values = t[new]
    each = [values[begin[i] : begin[i + 1]] for i in range(len(named))]
    return Splits([(int(f), bool(n), int(s)) for f, n, s in named], found, rank, each)


@dataclass(frozen=True)
class Packed:
    """What the kernels read of an ensemble: its kinds of trees, and the columns of bins of its splits.

    ``bin_of``: [column of splits], the first column of bins. ``bins`` are the thresholds of each column of bins.
    """

    splits: Splits
    bin_of: Array
    bins: Sequence[tuple[int, Array]]
    kinds: Array
    walks: bool


def choose(e: Ensemble, *, walk_all: bool = False) -> Packed:
    """How each tree is evaluated, and the columns of bins for that."""
    order, splits = e.order, splits_of(e)
    leaves = order.leaves[e.roots]
    kinds = np.where(leaves <= _MOST_DENSE, DENSE, WALKED)
    if walk_all:
        kinds[:] = WALKED
    kinds[_symmetric(e, splits) & (kinds == DENSE)] = SYMMETRIC
    visited = kinds != WALKED
    read = np.zeros(len(splits.keys), bool)
    inner = (e.kind != LEAF) & (order.tree >= 0)
    inner[inner] = visited[order.tree[inner]]
    read[splits.column[inner]] = True
    chunks = np.array([-(-len(t) // _THRESHOLDS) if r else 0 for t, r in zip(splits.thresholds, read, strict=True)], int)
    bin_of = np.concatenate([[0], np.cumsum(chunks)[:-1]]) if len(chunks) else np.zeros(0, int)
    bins = [
        (column, thresholds[_THRESHOLDS * i : _THRESHOLDS * (i + 1)])
        for column, thresholds in enumerate(splits.thresholds)
        for i in range(chunks[column])
    ]
    lanes = visited.any() and len(bins) <= _MOST_LANES
    return Packed(splits, bin_of, bins, kinds, bool((~visited).any() or not lanes))


def _symmetric(e: Ensemble, splits: Splits) -> Array:
    """Which trees are complete, with one comparison on each level, and have 2 levels at least."""
    order, trees = e.order, len(e.roots)
    leaves = order.leaves[e.roots]
    found = (leaves == 1 << np.minimum(order.depth, 62)) & (leaves >= 4)
    inner = np.flatnonzero((e.kind != LEAF) & (order.tree >= 0))
    inner = inner[found[order.tree[inner]]]
    level = np.zeros(len(e.kind), np.int64)
    level[inner] = order.depth[order.tree[inner]] - np.log2(order.leaves[inner]).astype(np.int64)
    # A complete tree: each node's leaves are a power of two, the same on a level.
    key = order.tree[inner] * 64 + level[inner]
    about = splits.column[inner] * (1 << 32) + splits.rank[inner]
    most = np.full(trees * 64, -1, np.int64)
    np.maximum.at(most, key, about)
    np.logical_and.at(found, order.tree[inner], about == most[key])
    np.logical_and.at(found, order.tree[inner], order.leaves[inner] & (order.leaves[inner] - 1) == 0)
    return found


def add_bins(program: TableProgram, sources: Sequence[Column], packed: Packed) -> int:
    """Add the step that makes columns of bins of ``sources``, one for each column of splits. Returns their offset."""
    thresholds = [each for _, each in packed.bins]
    begin = program.new_bytes(len(thresholds))
    if not thresholds:
        return begin
    wide = sources[packed.bins[0][0]].dtype == "float64"
    dtype = np.dtype(np.float64 if wide else np.float32)
    levels = np.array([max(1, int(len(each)).bit_length()) for each in thresholds], np.int32)
    sizes = np.maximum(1 << levels.astype(np.int64), CHUNK)
    sorted_begin = np.concatenate([[0], np.cumsum(sizes)])
    search_begin = np.concatenate([[0], np.cumsum(sizes + CHUNK)])
    ordered = np.full(sorted_begin[-1], np.inf, dtype)
    search = np.full(search_begin[-1], np.inf, dtype)
    last = np.full((len(thresholds), CHUNK), np.inf, dtype)
    for i, each in enumerate(thresholds):
        own = ordered[sorted_begin[i] : sorted_begin[i + 1]]
        own[: len(each)] = each
        last[i, : len(own) // CHUNK] = own[CHUNK - 1 :: CHUNK]
        tree = search[search_begin[i] :]
        for level in range(levels[i]):
            step = 1 << (levels[i] - level)
            tree[1 << level : 2 << level] = own[step // 2 - 1 : 1 << levels[i] : step]
    pairs = np.ascontiguousarray(np.stack([sorted_begin[:-1], search_begin[:-1]], 1), np.int64)
    struct = bins_struct(sorted=ordered, last=last, search=search, levels=levels, begin=pairs)
    ins = [sources[column] for column, _ in packed.bins]
    program.step("bins", ins, [begin], (dtype.name, dtype.name), [struct])
    return begin


def add_trees(
    program: TableProgram, e: Ensemble, packed: Packed, sources: Sequence[Column], bins: int, sums: str
) -> list[Column]:
    """Add the step that sums the leaf values of all trees, in the type ``sums``. Returns a column for each target."""
    order, trees = e.order, len(e.roots)
    kinds, dtype = packed.kinds, np.dtype(sums)
    table = np.zeros(trees, TREE)
    table["leaves"] = order.leaves[e.roots]
    table["depth"] = order.depth
    visited = kinds != WALKED
    lanes = visited.any() and len(packed.bins) <= _MOST_LANES
    nodes = _dense_nodes(e, packed, table)
    walks = _walks(e, packed, table, sources, not lanes)
    values, planes, targets = _leaf_values(e, table, dtype)
    group, bytes_of, lane_of = _lanes(e, packed, table, nodes) if lanes else (None, None, None)
    single = np.flatnonzero(~visited) if lanes else np.arange(trees)
    first_leaf = None
    if (table["targets"] == 1).all() and len({*targets[table["target"]].tolist()}) == 1 and not single.size:
        first_leaf = table["leaf"].astype(np.int32)
    counts = {
        "trees": trees,
        "bins": bins,
        "bin_columns": len(packed.bins),
        "runs": 0,
        "single_runs": 0,
        "groups": 0 if group is None else len(group),
    }
    runs = _runs(kinds, np.arange(trees))
    single_runs = _runs(np.full(trees, WALKED), single)
    counts["runs"], counts["single_runs"] = len(runs), len(single_runs)
    arrays = {
        "run": runs,
        "single_run": single_runs,
        "group": group,
        "tree": table,
        "node": nodes,
        "walk": walks[0],
        "leaf": walks[1],
        "value": values,
        "plane": planes,
        "target": targets,
        "lanes": bytes_of,
        "lane_of": np.full(trees, -1, np.int32) if lane_of is None else lane_of,
        "first_leaf": first_leaf,
    }
    outs = program.new(sums, e.targets)
    wide = sources and sources[0].dtype == "float64"
    room = 8 * len(sources) + 64 + e.targets * BLOCK * dtype.itemsize + 64 + 4 * trees + counts["groups"] * LANES + 64
    program.scratch_bytes = max(program.scratch_bytes, room + 4096)
    program.step("trees", sources, outs, ("float64" if wide else "float32", sums), [trees_struct(counts, arrays)])
    return outs


def _runs(kinds: Array, which: Array) -> Array:
    """Runs of consecutive trees of one kind: kind, first, end."""
    if not which.size:
        return np.zeros((0, 3), np.int64)
    cut = np.flatnonzero((np.diff(which) != 1) | (np.diff(kinds[which]) != 0)) + 1
    first, last = np.concatenate([[0], cut]), np.concatenate([cut, [len(which)]]) - 1
    return np.ascontiguousarray(np.stack([kinds[which[first]], which[first], which[last] + 1], 1), np.int64)


def _begin(sizes: Array) -> Array:
    """Where parts of these sizes begin, one behind the other."""
    return np.concatenate([[0], np.cumsum(sizes)])[:-1]


def _dense_nodes(e: Ensemble, packed: Packed, table: Array) -> Array:
    order, splits = e.order, packed.splits
    symmetric = packed.kinds == SYMMETRIC
    counts = np.where(packed.kinds == DENSE, table["leaves"] - 1, np.where(symmetric, order.depth, 0))
    table["nodes"], table["node"] = counts, _begin(counts)
    found = np.zeros(max(1, int(counts.sum())), NODE)
    inner = np.flatnonzero((e.kind != LEAF) & (order.tree >= 0))
    tree = order.tree[inner]
    # Of a symmetric tree the nodes on the way to the first leaf stand for their levels.
    kept = (packed.kinds[tree] == DENSE) | (symmetric[tree] & (order.first[inner] == 0))
    inner, tree = inner[kept], tree[kept]
    at = table["node"][tree] + order.pre[inner]
    rank = splits.rank[inner]
    found["column"][at] = (packed.bin_of[splits.column[inner]] + rank // _THRESHOLDS) * BLOCK
    found["bin"][at] = rank % _THRESHOLDS - 128
    dense = packed.kinds[tree] == DENSE
    found["first"][at[dense]] = order.first[inner[dense]]
    found["right"][at[dense]] = order.first[e.right[inner[dense]]]
    return found


def _walks(
    e: Ensemble, packed: Packed, table: Array, sources: Sequence[Column], everything: bool
) -> tuple[Array, Array]:
    """Nodes of walked trees, of which the children of a node are beside each other, and the leaf of each."""
    order, splits = e.order, packed.splits
    walked = np.ones(len(e.roots), bool) if everything else packed.kinds == WALKED
    sizes = np.where(walked, 2 * table["leaves"] - 1, 0)
    table["root"] = _begin(sizes)
    wide = bool(sources) and sources[0].dtype == "float64"
    found = np.zeros(max(1, int(sizes.sum())), WIDE_WALK if wide else NARROW_WALK)
    leaf = np.zeros(len(found), np.uint32)
    nodes = np.flatnonzero(order.tree >= 0)
    nodes = nodes[walked[order.tree[nodes]]]
    at = np.zeros(len(e.kind), np.int64)
    roots = e.roots[walked]
    at[roots] = table["root"][walked]
    inner = nodes[e.kind[nodes] != LEAF]
    pair = table["root"][order.tree[inner]] + 1 + 2 * order.pre[inner]
    at[e.left[inner]], at[e.right[inner]] = pair, pair + 1
    found["left"][at[inner]] = pair
    found["column"][at[inner]] = splits.column[inner]
    member = e.kind[inner] == MEMBER
    found["threshold"][at[inner]] = np.where(member, 0.5, e.threshold[inner])
    leaves = nodes[e.kind[nodes] == LEAF]
    found["left"][at[leaves]] = at[leaves]
    found["threshold"][at[leaves]] = np.inf
    leaf[at[leaves]] = order.first[leaves]
    return found, leaf


def _leaf_values(e: Ensemble, table: Array, dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    """Values by tree, target and leaf; their bytes as planes; and the targets of all trees."""
    order, trees = e.order, len(e.roots)
    reached = (order.tree[e.weight_node] >= 0) & (e.kind[e.weight_node] == LEAF)
    node, target, weight = e.weight_node[reached], e.weight_target[reached], e.weight[reached]
    key = order.tree[node] * e.targets + target
    pairs = np.unique(np.concatenate([key, np.setdiff1d(np.arange(trees), order.tree[node]) * e.targets]))
    tree_of = pairs // e.targets
    table["target"] = np.searchsorted(tree_of, np.arange(trees))
    table["targets"] = np.bincount(tree_of, minlength=trees)
    table["leaf"] = _begin(table["targets"] * table["leaves"])
    values = np.zeros(int((table["targets"] * table["leaves"]).sum()), dtype)
    pair = np.searchsorted(pairs, key)
    place = pair - table["target"][order.tree[node]]
    tree = order.tree[node]
    np.add.at(values, table["leaf"][tree] + place * table["leaves"][tree] + order.first[node], weight.astype(dtype))
    widths = np.where(table["leaves"] <= 64, 64, np.where(table["leaves"] <= 128, 128, 256))
    table["width"] = widths
    has_planes = table["leaves"] <= _MOST_DENSE
    sizes = np.where(has_planes, widths * table["targets"] * dtype.itemsize, 0)
    table["planes"] = _begin(sizes)
    planes = np.zeros(int(sizes.sum()) + 256, np.uint8)
    as_bytes = values.view(np.uint8).reshape(-1, dtype.itemsize)
    pair_leaves = table["leaves"][tree_of]
    begin = table["leaf"][tree_of] + (np.arange(len(pairs)) - table["target"][tree_of]) * pair_leaves
    to = table["planes"][tree_of] + (np.arange(len(pairs)) - table["target"][tree_of]) * widths[tree_of] * dtype.itemsize
    small = has_planes[tree_of]
    number = np.repeat(np.arange(len(pairs))[small], pair_leaves[small])
    leaf = np.arange(len(number)) - np.repeat(_begin(pair_leaves[small]), pair_leaves[small])
    for byte in range(dtype.itemsize):
        planes[to[number] + byte * widths[tree_of[number]] + leaf] = as_bytes[begin[number] + leaf, byte]
    return values, planes, (pairs % e.targets).astype(np.int32)


def _lanes(e: Ensemble, packed: Packed, table: Array, nodes: Array) -> tuple[Array, Array, Array]:
    """Groups of trees for one row, the bytes of their steps, and the lane of each tree."""
    lane_of = np.full(len(table), -1, np.int32)
    groups: list[tuple[int, int, int]] = []
    parts: list[Array] = []
    begin = 0
    for kind, fields in ((DENSE, 4), (SYMMETRIC, 2)):
        trees = np.flatnonzero(packed.kinds == kind)
        trees = trees[np.argsort(table["nodes"][trees], kind="stable")]
        for first in range(0, len(trees), LANES):
            some = trees[first : first + LANES]
            lane_of[some] = len(groups) * LANES + np.arange(len(some))
            steps = int(table["nodes"][some].max(initial=0))
            bytes_of = np.zeros((steps, fields, LANES), np.uint8)
            bytes_of[:, 1] = 127  # nothing is above it
            counts = table["nodes"][some]
            lane = np.repeat(np.arange(len(some)), counts)
            step = np.arange(len(lane)) - np.repeat(_begin(counts), counts)
            if kind == SYMMETRIC:  # a tree of fewer levels begins later, so that its position is not doubled
                step = step + steps - counts[lane]
            own = nodes[np.repeat(table["node"][some], counts) + np.arange(len(lane)) - np.repeat(_begin(counts), counts)]
            bytes_of[step, 0, lane] = own["column"] // BLOCK
            bytes_of[step, 1, lane] = own["bin"].view(np.uint8)
            if fields == 4:
                bytes_of[step, 2, lane], bytes_of[step, 3, lane] = own["first"], own["right"]
            groups.append((kind, steps, begin))
            parts.append(bytes_of.reshape(-1))
            begin += bytes_of.size
    lanes = np.concatenate([*parts, np.zeros(LANES, np.uint8)])
    return np.array(groups, np.int64).reshape(-1, 3), lanes, lane_of
