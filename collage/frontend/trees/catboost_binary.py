"""CatBoost's binary files (``.cbm``), without CatBoost, which reads outside of damaged ones.

They hold a flatbuffer; its schema is ``model.fbs`` of CatBoost.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from collage.errors import ModelError
from collage.frontend.trees.catboost_json import (
    CatBoostModel,
    Features,
    Tree,
    as_catboost,
    refuse_other_features,
    symmetric_tree,
)
from collage.frontend.trees.ensemble import DAMAGED, Floats, Ints, joined, starts
from collage.frontend.trees.flatbuffer import FlatBuffer, Table
from collage.frontend.trees.json_text import read_json

MAGIC = b"CBM1"
_FORMAT = "FlabuffersModel_v1"
_TREATMENTS = ("AsIs", "AsFalse", "AsTrue")
# Fields of the trees, by their numbers in the schema.
_DIMENSION, _SPLITS, _SIZES, _STARTS, _CATEGORICAL, _FLOATS = range(6)
_LEAF_VALUES, _NODES, _LEAVES_OF_NODES, _TEXT = 8, 10, 11, 12
_SCALE, _BIAS, _BIASES, _EMBEDDING = 14, 15, 16, 18


def read_binary(data: bytes, what: str) -> CatBoostModel:
    """The model of a ``.cbm`` file. Raises ModelError, which ``what`` names the file in."""
    if len(data) < 8 or not data.startswith(MAGIC):
        raise ModelError(f"{what} is no model of CatBoost.")
    (size,) = struct.unpack_from("<I", data, 4)
    if size > len(data) - 8:
        raise ModelError(f"{what} is cut short: {size:,} bytes are announced, and {len(data) - 8:,} are left.")
    core = FlatBuffer(data[8 : 8 + size], what).root()
    trees = core.table(1)
    if core.text(0) != _FORMAT or trees is None:
        raise ModelError(f"{what} is of a format of CatBoost that Collage does not know.")
    for kind, field in (("categorical", _CATEGORICAL), ("text", _TEXT), ("embedding", _EMBEDDING)):
        names = [each.text(2) or str(each.number(1, "<i", "?")) for each in trees.tables(field)]
        refuse_other_features(kind, names, what)
    floats = trees.tables(_FLOATS)
    features = Features.of([_feature(each, what) for each in floats], what)
    borders = [each.vector(3, "<f4") for each in floats]
    # A split has the number of a border among those of all features.
    owners = np.repeat(np.arange(len(floats)), [len(each) for each in borders])
    with np.errstate(invalid="ignore"):  # NaN, which is refused later
        values = joined(borders, np.float32).astype(np.float64)
    targets = trees.number(_DIMENSION, "<i", 0)
    bias = tuple(trees.vector(_BIASES, "<f8").tolist())
    if not bias and 1 <= targets <= 1 << 16:
        bias = (trees.number(_BIAS, "<d", 0.0),) * targets
    if not 1 <= targets <= 1 << 16 or len(bias) != targets:
        raise ModelError(f"{what} has {targets} targets and {len(bias)} biases. {DAMAGED}")
    splits, sizes = (trees.vector(field, "<i4").astype(np.int64) for field in (_SPLITS, _SIZES))
    firsts = trees.vector(_STARTS, "<i4").astype(np.int64)
    if len(firsts) != len(sizes) or (sizes < 0).any() or not np.array_equal(firsts, starts(sizes)[:-1]):
        raise ModelError(f"{what}: its trees do not follow each other. {DAMAGED}")
    if sizes.sum() != len(splits):
        raise ModelError(f"{what}: its trees have {sizes.sum()} splits, and there are {len(splits)}. {DAMAGED}")
    leaves = trees.vector(_LEAF_VALUES, "<f8").astype(np.float64)
    nodes = trees.vector(_NODES, np.dtype([("left", "<u2"), ("right", "<u2")]))
    parts = _Parts(features, owners, values, splits, sizes, firsts, leaves, targets, what)
    forest = parts.symmetric() if not len(nodes) else parts.others(nodes, trees.vector(_LEAVES_OF_NODES, "<u4"))
    info: dict[str, Any] = {each.text(0): each.text(1) for each in core.tables(2)}
    for name, text in info.items():
        if name.endswith("params") and text:
            info[name] = read_json(text.encode(), what)
    return as_catboost(features, forest, trees.number(_SCALE, "<d", 1.0), bias, info, what)


def _feature(table: Table, what: str) -> tuple[int, int, str, str]:
    """The number of a feature, its position in the input, how it treats NaN, and its name."""
    treatment = table.number(5, "<b", 0)
    if not 0 <= treatment < len(_TREATMENTS):
        raise ModelError(f"{what}: a feature treats NaN in an unknown way. {DAMAGED}")
    return table.number(1, "<i", -1), table.number(2, "<i", -1), _TREATMENTS[treatment], table.text(4)


class _Parts:
    """The arrays of all trees, one tree after another."""

    def __init__(
        self,
        features: Features,
        owners: Ints,
        borders: Floats,
        splits: Ints,
        sizes: Ints,
        firsts: Ints,
        leaves: Floats,
        targets: int,
        what: str,
    ) -> None:
        self._features, self._owners, self._borders, self._splits = features, owners, borders, splits
        self._sizes, self._firsts, self._leaves, self._targets, self._what = sizes, firsts, leaves, targets, what

    def _check(self, splits: Ints) -> None:
        if len(splits) and not 0 <= splits.min() <= splits.max() < len(self._borders):
            raise ModelError(f"{self._what}: a split has a border that the model does not have. {DAMAGED}")

    def symmetric(self) -> list[Tree]:
        """Trees with one split for each level."""
        self._check(self._splits)
        if len(self._sizes) and self._sizes.max() > 16:
            raise ModelError(f"{self._what}: a tree has {self._sizes.max()} levels. {DAMAGED}")
        ends = starts((self._targets << self._sizes).tolist())
        if ends[-1] != len(self._leaves):
            raise ModelError(f"{self._what} has {len(self._leaves)} values of leaves, and needs {ends[-1]}. {DAMAGED}")
        found = []
        for number, (first, size) in enumerate(zip(self._firsts.tolist(), self._sizes.tolist(), strict=True)):
            splits = self._splits[first : first + size]
            leaves = self._leaves[ends[number] : ends[number + 1]].reshape(-1, self._targets)
            found.append(symmetric_tree(self._features, self._owners[splits], self._borders[splits], leaves))
        return found

    def others(self, nodes: Any, leaf_of_node: Ints) -> list[Tree]:
        """Trees of nodes, which have the distances to their children. One without a child has a leaf there instead."""
        if not len(nodes) == len(leaf_of_node) == len(self._splits):
            raise ModelError(f"{self._what} has {len(nodes)} nodes, and splits of {len(self._splits)}. {DAMAGED}")
        found = []
        for first, size in zip(self._firsts.tolist(), self._sizes.tolist(), strict=True):
            part = slice(first, first + size)
            found.append(self._tree(nodes[part], leaf_of_node[part].astype(np.int64), self._splits[part]))
        return found

    def _tree(self, nodes: Any, leaf_of_node: Ints, splits: Ints) -> Tree:
        if not len(nodes):
            raise ModelError(f"{self._what}: a tree has no nodes. {DAMAGED}")
        left, right = (nodes[side].astype(np.int64) for side in ("left", "right"))
        inner = (left != 0) | (right != 0)
        self._check(splits[inner])
        numbers = np.cumsum(inner) - 1
        # The leaves: nodes without children, and the missing children of others, which share the node's value.
        chosen = np.flatnonzero(~inner)
        places = [np.where(inner, numbers, ~(np.cumsum(~inner) - 1))]
        sides = []
        for side in (left, right):
            here, missing = side[inner], side[inner] == 0
            target = np.flatnonzero(inner) + here
            if len(target) and target.max() >= len(nodes):
                raise ModelError(f"{self._what}: a child of a node is out of range. {DAMAGED}")
            own = ~(len(chosen) + np.cumsum(missing) - 1)
            sides.append(np.where(missing, own, places[0][target]))
            chosen = np.concatenate((chosen, np.flatnonzero(inner)[missing]))
        at = leaf_of_node[chosen]
        if len(at) and at.max() > len(self._leaves) - self._targets:
            raise ModelError(f"{self._what}: a leaf has no value. {DAMAGED}")
        owners = self._owners[splits[inner]]
        return Tree(
            features=np.array(self._features.positions)[owners],
            borders=self._borders[splits[inner]],
            tracks=np.array(self._features.above)[owners],
            true=sides[1],
            false=sides[0],
            leaves=self._leaves[at[:, None] + np.arange(self._targets)],
        )
