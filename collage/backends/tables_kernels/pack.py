"""Ensembles as arrays for the kernels: columns of bins, nodes in order, and leaf values (see `table.h`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.backends.tables_kernels.ensemble import LEAF, MEMBER, Array, Ensemble, rounded_down
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
MOST_DENSE = 256
"""The most leaves of a tree that is visited whole: positions have 8 bits."""
_MOST_LOOKED_UP = 256
"""The most columns of bins that one row is looked up in, and that a byte can tell."""
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
    ``lanes``: whether one row is at trees side by side.
    """

    splits: Splits
    bin_of: Array
    bins: Sequence[tuple[int, Array]]
    kinds: Array
    lanes: bool


@dataclass(frozen=True)
class Direct:
    """The elements of a row of input ``source``, which has ``width`` of them, that the columns of splits are.

    An element is ~its number if NaN is high.
    """

    source: int
    width: int
    elements: Sequence[int]


def choose(e: Ensemble, *, walk_all: bool = False) -> Packed:
    """How each tree is evaluated, and the columns of bins for that."""
    order, splits = e.order, splits_of(e)
    leaves = order.leaves[e.roots]
    kinds = np.where(leaves <= MOST_DENSE, DENSE, WALKED)
    if walk_all:
        kinds[:] = WALKED
    visited = kinds != WALKED
    if _symmetric(e, splits)[visited].all():  # one row is at trees of one kind side by side
        kinds[visited] = SYMMETRIC
    read = np.zeros(len(splits.keys), bool)
    inner = (e.kind != LEAF) & (order.tree >= 0)
    inner[inner] = visited[order.tree[inner]]
    read[splits.column[inner]] = True
    chunks = np.array(
        [-(-len(t) // _THRESHOLDS) if r else 0 for t, r in zip(splits.thresholds, read, strict=True)], int
    )
    bin_of = np.concatenate([[0], np.cumsum(chunks)[:-1]]) if len(chunks) else np.zeros(0, int)
    bins = [
        (column, thresholds[_THRESHOLDS * i : _THRESHOLDS * (i + 1)])
        for column, thresholds in enumerate(splits.thresholds)
        for i in range(chunks[column])
    ]
    # Another bin takes about as long as another node of a walk.
    lanes = bool(visited.any()) and len(bins) <= max(_MOST_LOOKED_UP, int(order.depth[visited].sum()))
    return Packed(splits, bin_of, bins, kinds, lanes)


def _symmetric(e: Ensemble, splits: Splits) -> Array:
    """Which trees are complete, with one comparison on each level."""
    order, trees = e.order, len(e.roots)
    leaves = order.leaves[e.roots]
    found = leaves == 1 << np.minimum(order.depth, 62)
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
    return np.asarray(found)


def add_bins(program: TableProgram, begin: int, sources: Sequence[Column], packed: Packed, which: range) -> None:
    """Add the step that makes some columns of bins, of ``sources``, from the offset ``begin`` on."""
    thresholds = [packed.bins[i][1] for i in which]
    dtype = np.dtype(sources[0].dtype)
    levels = np.array([max(1, len(each).bit_length()) for each in thresholds], np.int32)
    # Not a power of two, so that the columns' tables are in different lines of the cache.
    sizes = np.maximum(1 << levels.astype(np.int64), CHUNK) + CHUNK
    starts = _begin(sizes)
    ordered, search = (np.full(int(sizes.sum()), np.inf, each) for each in (dtype, np.float32))
    last = np.full((len(thresholds), CHUNK), np.inf, dtype)
    for i, each in enumerate(thresholds):
        own = ordered[starts[i] : starts[i] + sizes[i] - CHUNK]
        own[: len(each)] = each
        last[i, : len(own) // CHUNK] = own[CHUNK - 1 :: CHUNK]
        tree = search[starts[i] :]
        for level in range(levels[i]):
            step = 1 << (levels[i] - level)
            tree[1 << level : 2 << level] = rounded_down(own[step // 2 - 1 : 1 << levels[i] : step])
    keys = [packed.splits.keys[packed.bins[i][0]] for i in which]
    high = np.array([nan_high and members < 0 for _, nan_high, members in keys], np.int32)
    struct = bins_struct(
        sorted=ordered, last=last, search=search, levels=levels, high=high, begin=starts.astype(np.int64)
    )
    program.step("bins", sources, [begin + which.start], (dtype.name, dtype.name), [struct])


def add_trees(
    program: TableProgram,
    e: Ensemble,
    packed: Packed,
    sources: Sequence[Column],
    bins: int,
    compared: str,
    sums: str,
    direct: Direct | None,
) -> list[Column]:
    """Add the step that sums the leaf values of all trees, in the type ``sums``. Returns a column for each target.

    ``sources`` are the columns of splits, of type ``compared``, if trees are walked, and ``bins`` is the offset of the
    columns of bins. If one row walks on the model's input itself, ``direct`` says where its numbers are.
    """
    order, trees = e.order, len(e.roots)
    kinds, dtype = packed.kinds, np.dtype(sums)
    table = np.zeros(trees, TREE)
    table["leaves"] = order.leaves[e.roots]
    table["depth"] = order.depth
    visited = kinds != WALKED
    lanes = packed.lanes
    nodes = _dense_nodes(e, packed, table)
    walks = _walks(e, packed, table, compared, not lanes)
    values, planes, targets = _leaf_values(e, table, dtype)
    group, bytes_of, ordered, lane_of = _lanes(packed, table, nodes) if lanes else (None, None, None, None)
    single = np.flatnonzero(~visited) if lanes else np.arange(trees)
    one_target = (table["targets"] == 1).all() and (targets[table["target"]] == targets[table["target"][0]]).all()
    first_leaf = table["leaf"].astype(np.int32) if one_target and not single.size else None
    counts = {
        "trees": trees,
        "bins": bins,
        "bin_columns": len(packed.bins),
        "runs": 0,
        "single_runs": 0,
        "groups": 0 if group is None else len(group),
        "lane_steps": 0 if ordered is None else len(ordered) // LANES,
        "input": 0 if direct is None else direct.source,
        "width": 0 if direct is None else direct.width,
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
        "ordered": ordered,
        "lane_of": np.full(trees, -1, np.int32) if lane_of is None else lane_of,
        "first_leaf": first_leaf,
        "direct": None if direct is None else np.array(direct.elements, np.int32),
    }
    outs = program.new(sums, e.targets)
    room = 8 * len(sources) + 64 + e.targets * BLOCK * dtype.itemsize + 64 + 4 * trees + counts["groups"] * LANES + 64
    room += counts["lane_steps"] * LANES
    program.scratch_bytes = max(program.scratch_bytes, room + 4096)
    program.step("trees", sources, outs, (compared, sums), [trees_struct(counts, arrays)])
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


def _walks(e: Ensemble, packed: Packed, table: Array, compared: str, everything: bool) -> tuple[Array, Array]:
    """Nodes of walked trees, of which the children of a node are beside each other, and the leaf of each."""
    order, splits = e.order, packed.splits
    walked = np.ones(len(e.roots), bool) if everything else packed.kinds == WALKED
    sizes = np.where(walked, 2 * table["leaves"] - 1, 0)
    table["root"] = _begin(sizes)
    found = np.zeros(max(1, int(sizes.sum())), WIDE_WALK if compared == "float64" else NARROW_WALK)
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
    has_planes = table["leaves"] <= MOST_DENSE
    sizes = np.where(has_planes, widths * table["targets"] * dtype.itemsize, 0)
    table["planes"] = _begin(sizes)
    planes = np.zeros(int(sizes.sum()) + 256, np.uint8)
    as_bytes = values.view(np.uint8).reshape(-1, dtype.itemsize)
    pair_leaves = table["leaves"][tree_of]
    begin = table["leaf"][tree_of] + (np.arange(len(pairs)) - table["target"][tree_of]) * pair_leaves
    to = (
        table["planes"][tree_of] + (np.arange(len(pairs)) - table["target"][tree_of]) * widths[tree_of] * dtype.itemsize
    )
    small = has_planes[tree_of]
    number = np.repeat(np.arange(len(pairs))[small], pair_leaves[small])
    leaf = np.arange(len(number)) - np.repeat(_begin(pair_leaves[small]), pair_leaves[small])
    for byte in range(dtype.itemsize):
        planes[to[number] + byte * widths[tree_of[number]] + leaf] = as_bytes[begin[number] + leaf, byte]
    return values, planes, (pairs % e.targets).astype(np.int32)


def _lanes(packed: Packed, table: Array, nodes: Array) -> tuple[Array, Array, Array | None, Array]:
    """Groups of trees for one row, the bytes of their steps, perhaps the columns of all steps, and each tree's lane."""
    trees = np.flatnonzero(packed.kinds != WALKED)
    kind = int(packed.kinds[trees[0]])
    lane_of = np.full(len(table), -1, np.int32)
    lane_of[trees] = np.arange(len(trees))
    counts = table["nodes"][trees]
    # Two groups run together, and so have as many steps.
    pairs = range(0, len(trees), 2 * LANES)
    steps = [int(counts[first : first + 2 * LANES].max()) for first in pairs for _ in range(2)]
    steps = steps[: -(-len(trees) // LANES)]
    fields = 2 if kind == SYMMETRIC else 4
    begin = _begin(np.array(steps) * fields * LANES)
    found = np.zeros(sum(steps) * fields * LANES + LANES, np.uint8)
    columns = np.zeros((sum(steps), LANES), np.int32)
    for i, first in enumerate(range(0, len(trees), LANES)):
        some, own = trees[first : first + LANES], counts[first : first + LANES]
        bytes_of = found[begin[i] : begin[i] + steps[i] * fields * LANES].reshape(steps[i], fields, LANES)
        bytes_of[:, 1] = 127  # nothing is above it
        lane = np.repeat(np.arange(len(some)), own)
        number = np.arange(len(lane)) - np.repeat(_begin(own), own)
        # A symmetric tree of fewer levels begins later, so that its position is not doubled.
        step = number + (steps[i] - own[lane] if kind == SYMMETRIC else 0)
        node = nodes[np.repeat(table["node"][some], own) + number]
        column = columns[begin[i] // (fields * LANES) :][: steps[i]]
        column[step, lane] = node["column"] // BLOCK
        bytes_of[:, 0] = column.astype(np.uint8)
        bytes_of[step, 1, lane] = node["bin"].view(np.uint8)
        if kind == DENSE:
            bytes_of[step, 2, lane], bytes_of[step, 3, lane] = node["first"], node["right"]
    groups = np.array([(kind, n, at) for n, at in zip(steps, begin, strict=True)], np.int64).reshape(-1, 3)
    return groups, found, columns.reshape(-1) if len(packed.bins) > _MOST_LOOKED_UP else None, lane_of
