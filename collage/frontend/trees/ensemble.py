"""Ensembles of decision trees as arrays, checked, and as the tree operators of ``ai.onnx.ml``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, helper, numpy_helper

from collage.errors import ModelError

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.floating[Any]]

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)
"""Comparisons of a feature with a split, as ``TreeEnsemble`` numbers them."""

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")

DEEPEST = 5_000
"""The most nodes on a path. ONNX Runtime walks trees by recursion, and overflows its stack from 20,000 on."""


MOST_FEATURES = 1 << 24
"""The most features that a file may announce: memory is taken for each."""

DAMAGED = "The file is damaged: save the model again."
"""How messages about impossible contents end."""


def shown(value: object) -> str:
    """Text out of a file, for a message: on one line, short, and without control characters."""
    return repr(str(value)[:40])[1:-1]


@dataclass(frozen=True)
class Trees:
    """Decision trees: an entry for each inner node of all trees, and an entry for each leaf.

    A child or a root is the number of a node, or ``~leaf``. The dtype of ``splits`` and ``leaves``, float32 or float64,
    is the precision of comparisons and sums.
    """

    roots: Ints
    """The root of each tree, in the order of the sums."""
    features: Ints
    modes: NDArray[np.uint8]
    splits: Floats
    """What a feature is compared with. It means nothing for MEMBER."""
    tracks: NDArray[np.bool_]
    """Whether NaN goes to the true child."""
    true: Ints
    false: Ints
    leaves: Floats
    """[leaves, width]: the value for the leaf's target if the width is 1, else one for each target."""
    targets: Ints
    """The target of each leaf, if the width is 1."""
    n_targets: int
    sets: tuple[Floats, ...] = field(default=())
    """For each node with MEMBER, in their order, the values that go to the true child; none is empty."""

    def __post_init__(self) -> None:
        assert len({len(each) for each in (self.features, self.modes, self.splits, self.true, self.false)}) == 1
        assert len(self.tracks) == len(self.features) and len(self.targets) == len(self.leaves)
        assert self.leaves.shape[1] in (1, self.n_targets) and self.leaves.dtype == self.splits.dtype
        assert len(self.sets) == np.count_nonzero(self.modes == MEMBER)


def in_all(children: Sequence[Ints], nodes: Ints, leaves: Ints) -> Ints:
    """Children in trees, which are numbered in each tree, as they are numbered in all.

    ``nodes`` and ``leaves`` have the number of the first node, and leaf, of each tree.
    """
    spans = zip(children, nodes.tolist(), leaves.tolist(), strict=False)
    return joined([np.where(side < 0, side - leaf, side + node) for side, node, leaf in spans], np.int64)


def joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    """The parts one after another; of the given dtype if there are none."""
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def starts(sizes: Iterable[int]) -> Ints:
    """Where each part starts among the parts one after another, and where the last one ends."""
    return np.cumsum([0, *sizes], dtype=np.int64)


def check_trees(trees: Trees, n_features: int, what: str) -> None:
    """Raise ModelError if the arrays are no trees over the features. ``what`` names the model in messages.

    Each node and each leaf has to be reached once from the roots.
    """
    if not len(trees.roots):
        raise ModelError(f"{what} has no trees.")
    if len(trees.features) and not 0 <= trees.features.min() <= trees.features.max() < n_features:
        raise ModelError(f"{what}: a split reads a feature that the model does not have, of {n_features}. {DAMAGED}")
    if not np.isfinite(trees.leaves).all():
        raise ModelError(f"{what}: the value of a leaf is infinite or NaN. {DAMAGED}")
    if np.isnan(trees.splits).any():
        raise ModelError(f"{what}: a threshold is NaN. {DAMAGED}")
    nodes, leaves = reached(trees.roots, trees.true, trees.false, len(trees.leaves), what)
    if not (nodes.all() and leaves.all()):
        raise ModelError(f"{what}: no path reaches some of its nodes. {DAMAGED}")


def reached(
    roots: Ints, true: Ints, false: Ints, n_leaves: int, what: str
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The nodes, and the leaves, that paths from the roots reach.

    Raises ModelError for a child out of range, a node or leaf with two paths to it (so for cycles), and deep trees.
    """
    for each in (roots, true, false):
        if len(each) and not -n_leaves <= each.min() <= each.max() < len(true):
            raise ModelError(f"{what}: a child of a node is out of range. {DAMAGED}")
    nodes, leaves = np.zeros(len(true), np.bool_), np.zeros(n_leaves, np.bool_)
    level = roots
    for _ in range(DEEPEST + 2):  # the levels of the leaves and below them are no nodes
        if not len(level):
            return nodes, leaves
        inner = level >= 0
        for found, seen in ((level[inner], nodes), (~level[~inner], leaves)):
            if seen[found].any() or len(np.unique(found)) < len(found):
                raise ModelError(f"{what}: two paths lead to one node, or a path is a cycle. {DAMAGED}")
            seen[found] = True
        level = np.concatenate((true[level[inner]], false[level[inner]]))
    raise ModelError(f"{what}: a tree is deeper than {DEEPEST:,} nodes, which Collage does not take.")


def tree_of_nodes(trees: Trees) -> tuple[Ints, Ints]:
    """The tree of each node, and of each leaf. The trees are checked."""
    nodes, leaves = np.zeros(len(trees.true), np.int64), np.zeros(len(trees.leaves), np.int64)
    level, owner = trees.roots, np.arange(len(trees.roots))
    while len(level):
        inner = level >= 0
        nodes[level[inner]], leaves[~level[~inner]] = owner[inner], owner[~inner]
        level = np.concatenate((trees.true[level[inner]], trees.false[level[inner]]))
        owner = np.concatenate((owner[inner], owner[inner]))
    return nodes, leaves


def tree_node(trees: Trees, x: str, y: str, *, old: bool = False) -> onnx.NodeProto:
    """The operator that computes the sums, [rows, targets], of checked trees from ``x``, [rows, features].

    It is ``TreeEnsemble`` (operator set 5 of ``ai.onnx.ml``), whose leaves have one target, with x and y in the
    precision of the trees. If leaves have several targets, or ``old`` asks for it, it is ``TreeEnsembleRegressor``
    (set 3), whose output is float32: it sums in the precision of the trees, too, and rounds once.
    """
    if old or trees.leaves.shape[1] > 1:
        return _regressor(trees, x, y)
    trees = _unlike_bare_leaves(without_bare_leaves(trees))
    node = helper.make_node("TreeEnsemble", [x], [y], domain="ai.onnx.ml", n_targets=trees.n_targets)
    _ints(node, "tree_roots", trees.roots)
    _ints(node, "nodes_featureids", trees.features)
    _ints(node, "nodes_truenodeids", np.where(trees.true < 0, ~trees.true, trees.true))
    _ints(node, "nodes_trueleafs", trees.true < 0)
    _ints(node, "nodes_falsenodeids", np.where(trees.false < 0, ~trees.false, trees.false))
    _ints(node, "nodes_falseleafs", trees.false < 0)
    if trees.tracks.any():
        _ints(node, "nodes_missing_value_tracks_true", trees.tracks)
    _ints(node, "leaf_targetids", trees.targets)
    _tensor(node, "nodes_modes", trees.modes)
    _tensor(node, "nodes_splits", trees.splits)
    _tensor(node, "leaf_weights", trees.leaves[:, 0])
    if trees.sets:
        ends = np.array([np.nan], trees.splits.dtype)
        parts = [part for values in trees.sets for part in (values.astype(trees.splits.dtype), ends)]
        _tensor(node, "membership_values", np.concatenate(parts))
    return node


def without_bare_leaves(trees: Trees) -> Trees:
    """The trees with a node above each leaf that is a tree by itself: both of its children have the leaf's value.

    They are two leaves, since ONNX Runtime reads the wrong value if they are one (it takes the number of the node).
    """
    bare = np.flatnonzero(trees.roots < 0)
    if not len(bare):
        return trees
    of = ~trees.roots[bare]
    many, n_nodes, n_leaves = len(bare), len(trees.true), len(trees.leaves)
    roots = trees.roots.copy()
    roots[bare] = n_nodes + np.arange(many)
    # Their comparison is that of the other nodes: engines are faster with one for all.
    others = trees.modes[trees.modes != MEMBER]
    mode = others[0] if len(others) else LEQ
    return Trees(
        roots=roots,
        features=np.concatenate((trees.features, np.zeros(many, np.int64))),
        modes=np.concatenate((trees.modes, np.full(many, mode, np.uint8))),
        splits=np.concatenate((trees.splits, np.zeros(many, trees.splits.dtype))),
        tracks=np.concatenate((trees.tracks, np.zeros(many, np.bool_))),
        true=np.concatenate((trees.true, ~of)),
        false=np.concatenate((trees.false, ~(n_leaves + np.arange(many)))),
        leaves=np.concatenate((trees.leaves, trees.leaves[of])),
        targets=np.concatenate((trees.targets, trees.targets[of])),
        n_targets=trees.n_targets,
        sets=trees.sets,
    )


def _unlike_bare_leaves(trees: Trees) -> Trees:
    """The trees with leaves renumbered so that no root has a node and a leaf of one number for children.

    ONNX Runtime up to 1.23 takes such a tree for a bare leaf.
    """
    true, false = trees.true[trees.roots], trees.false[trees.roots]
    mixed = (true < 0) != (false < 0)
    node, leaf = np.maximum(true, false)[mixed], ~np.minimum(true, false)[mixed]
    many = len(trees.leaves)
    # Each such root forbids one rotation of the numbers, and its tree has three leaves at least.
    turn = int(np.flatnonzero(np.isin(np.arange(many), (node - leaf) % many, invert=True))[0])
    if not turn:
        return trees
    true, false = (np.where(side < 0, ~((~side + turn) % many), side) for side in (trees.true, trees.false))
    leaves, targets = np.roll(trees.leaves, turn, axis=0), np.roll(trees.targets, turn)
    return replace(trees, true=true, false=false, leaves=leaves, targets=targets)


def _regressor(trees: Trees, x: str, y: str) -> onnx.NodeProto:
    if trees.sets:
        raise ModelError(
            "splits into sets of categories, beside leaves with several values or in a scikit-learn pipeline, are not "
            "supported: train with one-hot categories, or compile the booster by itself."
        )
    n_nodes, n_leaves, width = len(trees.true), len(trees.leaves), trees.leaves.shape[1]
    of_nodes, of_leaves = tree_of_nodes(trees)
    # The nodes of a tree stand together, its root is the first, and they are numbered in the tree.
    kinds = np.concatenate((np.ones(n_nodes, np.int64), np.full(n_leaves, 2)))
    kinds[np.where(trees.roots < 0, n_nodes + ~trees.roots, trees.roots)] = 0
    owners = np.concatenate((of_nodes, of_leaves))
    order = np.lexsort((kinds, owners))
    owners = owners[order]
    firsts = np.searchsorted(owners, np.arange(len(trees.roots)))
    ids = np.empty(n_nodes + n_leaves, np.int64)
    ids[order] = np.arange(n_nodes + n_leaves) - firsts[owners]

    def children(of: Ints) -> Ints:
        return np.concatenate((ids[np.where(of < 0, n_nodes + ~of, of)], np.zeros(n_leaves, np.int64)))[order]

    def filled(values: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate((values, np.zeros(n_leaves, values.dtype)))[order]

    node = helper.make_node("TreeEnsembleRegressor", [x], [y], domain="ai.onnx.ml", n_targets=trees.n_targets)
    _ints(node, "nodes_treeids", owners)
    _ints(node, "nodes_nodeids", ids[order])
    _ints(node, "nodes_featureids", filled(trees.features))
    _ints(node, "nodes_truenodeids", children(trees.true))
    _ints(node, "nodes_falsenodeids", children(trees.false))
    if trees.tracks.any():
        _ints(node, "nodes_missing_value_tracks_true", filled(trees.tracks))
    names = np.array([name.encode() for name in _MODES] + [b"LEAF"], object)
    modes = np.concatenate((trees.modes, np.full(n_leaves, len(_MODES))))[order]
    node.attribute.add(name="nodes_modes", type=AttributeProto.STRINGS).strings.extend(names[modes].tolist())
    leaf_order = order[order >= n_nodes] - n_nodes
    columns = np.tile(np.arange(width), n_leaves) if width > 1 else trees.targets[leaf_order]
    _ints(node, "target_treeids", np.repeat(of_leaves[leaf_order], width))
    _ints(node, "target_nodeids", np.repeat(ids[n_nodes + leaf_order], width))
    _ints(node, "target_ids", columns)
    for name, values in (("nodes_values", filled(trees.splits)), ("target_weights", trees.leaves[leaf_order].ravel())):
        if values.dtype == np.float64:
            _tensor(node, f"{name}_as_tensor", values)
        else:
            node.attribute.add(name=name, type=AttributeProto.FLOATS).floats.extend(values.tolist())
    return node


def _ints(node: onnx.NodeProto, name: str, values: NDArray[Any]) -> None:
    node.attribute.add(name=name, type=AttributeProto.INTS).ints.extend(values.astype(np.int64).tolist())


def _tensor(node: onnx.NodeProto, name: str, values: NDArray[Any]) -> None:
    node.attribute.add(name=name, type=AttributeProto.TENSOR).t.CopyFrom(numpy_helper.from_array(values))
