"""LightGBM's model files, which are text, without LightGBM.

A number is compared in float64 (``Tree::NumericalDecision`` and ``Tree::CategoricalDecision`` of ``tree.h``). Before
that, values within 1e-35 of zero become zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage.errors import ModelError
from collage.frontend.trees.booster import ZERO, Booster, Categories, Link
from collage.frontend.trees.ensemble import (
    DAMAGED,
    EQ,
    LEQ,
    MEMBER,
    MOST_FEATURES,
    Floats,
    Ints,
    Trees,
    check_trees,
    in_all,
    joined,
    shown,
    starts,
)

_VERSIONS = ("v3", "v4")
_CATEGORICAL, _DEFAULT_LEFT = 1, 2
_NONE, _ZERO, _NAN = 0, 1, 2  # what is missing: nothing (NaN is zero), zero and NaN, NaN

_RAW = frozenset("regression regression_l1 huber fair quantile mape lambdarank rank_xendcg custom none null na".split())
_EXP = frozenset("poisson gamma tweedie".split())
_NEVER = 0.5
"""No category equals it."""


def read_lightgbm(data: bytes, what: str) -> Booster:
    """The booster of a file of ``Booster.save_model``. Raises ModelError, which ``what`` names the file in."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{what} is no LightGBM model: it is not UTF-8.") from error
    head, *blocks = text.replace("\r\n", "\n").split("\nTree=")
    fields = _fields(head)
    if not head.startswith("tree\n"):
        raise ModelError(f"{what} is no LightGBM model.")
    if fields.get("version") not in _VERSIONS:
        raise ModelError(f"{what} is of LightGBM's format {shown(fields.get('version'))}, and Collage takes v3 and v4.")
    if (not blocks and "\nend of trees" not in head) or (blocks and "\nend of trees" not in blocks[-1]):
        raise ModelError(f"{what} is cut short: it has no end of its trees. Save the model again.")
    n_features = _number(fields, "max_feature_idx", what) + 1
    per_round = _number(fields, "num_tree_per_iteration", what)
    names = tuple(fields.get("feature_names", "").split())
    if not 1 <= n_features <= MOST_FEATURES or not 1 <= per_round <= 1 << 16 or len(blocks) % per_round:
        raise ModelError(f"{what}: {len(blocks)} trees, {per_round} a round, {n_features} features. {DAMAGED}")
    sizes = fields.get("tree_sizes", "").split()
    if len(sizes) != len(blocks) or len(names) != n_features:
        raise ModelError(
            f"{what} has {len(blocks)} trees and {n_features} features, and sizes of {len(sizes)} trees and names of "
            f"{len(names)} features. {DAMAGED}"
        )
    forest = _Forest(what, n_features)
    for number, block in enumerate(blocks):
        index, _, rest = block.partition("\n")
        if index.strip() != str(number):
            raise ModelError(f"{what}: tree {number} is missing. {DAMAGED}")
        forest.add(_fields(rest.partition("\n\n")[0]), number)
    trees = forest.trees(per_round)
    check_trees(trees, n_features, what)
    link, slope, probabilities = _objective(fields.get("objective", ""), what)
    if link == "softmax" and per_round == 1:
        raise ModelError(f"{what}: an objective of several classes, and one tree a round. {DAMAGED}")
    rounds = len(blocks) // per_round
    return Booster(
        library=f"lightgbm {fields['version']}",
        names=names,
        n_features=n_features,
        dtype=np.dtype(np.float64),
        trees=trees,
        near_zero_is_missing=forest.near_zero,
        categories=Categories(forest.categorical, toward_zero=True),
        divisor=max(1, rounds) if "average_output" in fields else 1,
        link=link,
        slope=slope,
        classes=(2 if per_round == 1 else per_round) if probabilities else 0,
    )


def _fields(text: str) -> dict[str, str]:
    """The lines ``name=value``, and those without a value."""
    return {name: value for name, _, value in (line.partition("=") for line in text.split("\n"))}


def _number(fields: Mapping[str, str], name: str, what: str) -> int:
    try:
        return int(fields[name])
    except (KeyError, ValueError) as error:
        raise ModelError(f"{what} has no number {name}. {DAMAGED}") from error


def _objective(text: str, what: str) -> tuple[Link, float, bool]:
    """The link of an objective, its slope, and whether it gives probabilities of classes."""
    name, *settings = text.split() or ["custom"]
    given = dict(each.partition(":")[::2] for each in settings)
    try:
        slope = float(given.get("sigmoid", "1"))
    except ValueError as error:
        raise ModelError(f"{what}: the objective {shown(text)} has no number after sigmoid. {DAMAGED}") from error
    if not 0 < slope < np.inf:
        raise ModelError(f"{what}: the slope of the sigmoid is {slope:g}. {DAMAGED}")
    if name in ("binary", "multiclassova"):
        return "sigmoid", slope, True
    if name == "multiclass":
        return "softmax", 1, True
    if name == "cross_entropy":
        return "sigmoid", 1, False
    if name == "cross_entropy_lambda":
        return "log1p exp", 1, False
    if name in _EXP:
        return "exp", 1, False
    if name in _RAW:
        return "signed square" if "sqrt" in given else "identity", 1, False
    raise ModelError(f"{what} has LightGBM's objective {shown(name)}, which Collage does not know.")


@dataclass(frozen=True)
class _Block:
    """Arrays of one tree, an entry for each of its nodes or leaves."""

    features: Ints
    thresholds: Floats
    decisions: Ints
    left: Ints
    right: Ints
    values: Floats


class _Forest:
    """Trees under construction."""

    def __init__(self, what: str, n_features: int) -> None:
        self._what, self._n_features = what, n_features
        self._blocks: list[_Block] = []
        self._sets: list[Floats] = []
        self._near_zero: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.categorical: tuple[int, ...] = ()
        self.near_zero: tuple[int, ...] = ()

    def add(self, fields: Mapping[str, str], number: int) -> None:
        """Add a tree from its lines."""
        what = f"{self._what}: tree {number}"
        leaves = _number(fields, "num_leaves", what)
        if leaves < 1:
            raise ModelError(f"{what} has {leaves} leaves. {DAMAGED}")
        if fields.get("is_linear", "0").strip() != "0":
            raise ModelError(f"{what} is a linear tree, which Collage does not take: train with linear_tree=false.")
        values = _floats(fields, "leaf_value", leaves, what)
        n_nodes = leaves - 1
        block = _Block(
            _ints(fields, "split_feature", n_nodes, what),
            _floats(fields, "threshold", n_nodes, what),
            _ints(fields, "decision_type", n_nodes, what),
            _ints(fields, "left_child", n_nodes, what),
            _ints(fields, "right_child", n_nodes, what),
            values,
        )
        for children in (block.left, block.right):
            if n_nodes and not -leaves <= children.min() <= children.max() < n_nodes:
                raise ModelError(f"{what}: a child of a node is out of range. {DAMAGED}")
        if n_nodes and not 0 <= block.decisions.min() <= block.decisions.max() < _NAN * 4 + 4:
            raise ModelError(f"{what}: a node has an unknown type of decision. {DAMAGED}")
        categorical = block.decisions & _CATEGORICAL != 0
        if categorical.any():
            self._sets += self._categories(fields, block.thresholds[categorical], what)
        self._blocks.append(block)

    def _categories(self, fields: Mapping[str, str], numbers: Floats, what: str) -> list[Floats]:
        """The categories of each set that a node has the number of."""
        count = _number(fields, "num_cat", what)
        bounds = _ints(fields, "cat_boundaries", count + 1, what)
        if count < 1 or bounds[0] != 0 or (np.diff(bounds) < 0).any():
            raise ModelError(f"{what}: the boundaries of its sets of categories are no boundaries. {DAMAGED}")
        words = _ints(fields, "cat_threshold", int(bounds[-1]), what)
        if len(words) and not 0 <= words.min() <= words.max() < 1 << 32:
            raise ModelError(f"{what}: the sets of categories are not of 32 bits. {DAMAGED}")
        if not ((numbers >= 0) & (numbers < count) & (numbers == np.floor(numbers))).all():
            raise ModelError(f"{what}: a node has no set of categories. {DAMAGED}")
        if len(np.unique(numbers)) < len(numbers):
            raise ModelError(f"{what}: two nodes share a set of categories. {DAMAGED}")
        found: list[Floats] = []
        for number in numbers.astype(np.int64).tolist():
            part = words[bounds[number] : bounds[number + 1]].astype("<u4")
            bits = np.unpackbits(part.view(np.uint8), bitorder="little")
            found.append(np.flatnonzero(bits).astype(np.float64))
        return found

    def trees(self, per_round: int) -> Trees:
        """All trees. It also finds the features that hold categories, and those whose zeros are missing."""
        blocks = self._blocks
        nodes, leaves = starts(len(each.features) for each in blocks), starts(len(each.values) for each in blocks)
        features = joined([each.features for each in blocks], np.int64)
        splits = joined([each.thresholds for each in blocks], np.float64)
        decisions = joined([each.decisions for each in blocks], np.int64)
        true = in_all([each.left for each in blocks], nodes, leaves)
        false = in_all([each.right for each in blocks], nodes, leaves)
        if len(features) and not 0 <= features.min() <= features.max() < self._n_features:
            raise ModelError(f"{self._what}: a split reads a feature that the model does not have. {DAMAGED}")
        categorical = decisions & _CATEGORICAL != 0
        missing = decisions >> 2
        zeros = ~categorical & (missing == _ZERO)
        self.categorical = self._only(features, categorical, np.ones_like(categorical), "categories and as a number")
        self.near_zero = self._only(features, zeros, ~categorical, "a number whose zeros are missing, and are not")
        # Values near zero are zero: a threshold among them is above all of them, or below.
        near = np.abs(splits) <= ZERO
        splits = np.where(near & (splits >= 0), ZERO, np.where(near, np.nextafter(-ZERO, -1), splits))
        tracks = np.where(missing == _NONE, splits >= 0, decisions & _DEFAULT_LEFT != 0) & ~categorical
        modes = np.where(categorical, MEMBER, LEQ).astype(np.uint8)
        sets, singles = [], []
        for values in self._sets:
            if len(values) > 1:
                sets.append(values)
            singles.append(-1.0 if len(values) > 1 else values[0] if len(values) else _NEVER)
        single = np.array(singles, np.float64)
        splits[categorical] = single
        modes[np.flatnonzero(categorical)[single >= 0]] = EQ
        sizes = np.diff(leaves)
        return Trees(
            roots=np.where(sizes > 1, nodes[:-1], ~leaves[:-1]),
            features=features,
            modes=modes,
            splits=splits,
            tracks=tracks,
            true=true,
            false=false,
            leaves=joined([each.values for each in blocks], np.float64)[:, None],
            targets=np.repeat(np.arange(len(blocks)) % per_round, sizes),
            n_targets=per_round,
            sets=tuple(sets),
        )

    def _only(self, features: Ints, chosen: NDArray[np.bool_], of: NDArray[np.bool_], uses: str) -> tuple[int, ...]:
        """The features of the chosen nodes. Raises ModelError if other nodes among ``of`` read one of them."""
        found = np.unique(features[chosen])
        both = np.intersect1d(found, features[of & ~chosen])
        if len(both):
            raise ModelError(f"{self._what} uses feature {both[0]} as {uses}, which Collage does not take.")
        return tuple(found.tolist())


def _ints(fields: Mapping[str, str], name: str, count: int, what: str) -> Ints:
    try:
        found = np.array(list(map(int, fields.get(name, "").split())), np.int64)
    except (ValueError, OverflowError) as error:
        raise ModelError(f"{what}: {name} are no integers. {DAMAGED}") from error
    _check_count(found, name, count, what)
    return found


def _floats(fields: Mapping[str, str], name: str, count: int, what: str) -> Floats:
    try:
        found = np.array(list(map(float, fields.get(name, "").split())), np.float64)
    except ValueError as error:
        raise ModelError(f"{what}: {name} are no numbers. {DAMAGED}") from error
    _check_count(found, name, count, what)
    return found


def _check_count(found: NDArray[Any], name: str, count: int, what: str) -> None:
    if len(found) != count:
        raise ModelError(f"{what}: {len(found)} values of {name}, and {count} are needed. {DAMAGED}")
