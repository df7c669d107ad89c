"""CatBoost's models, as the value in their JSON files, without CatBoost.

A number is compared in float32 (``x > border``), and sums are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage.errors import ModelError
from collage.frontend.trees.booster import Booster, Link
from collage.frontend.trees.ensemble import (
    DAMAGED,
    DEEPEST,
    GT,
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

_DEEPEST_SYMMETRIC = 16
"""CatBoost's own limit."""
_BINARY = frozenset("Logloss CrossEntropy Focal".split())
_SEVERAL_LABELS = frozenset("MultiLogloss MultiCrossEntropy".split())
_CLASSES = frozenset("MultiClass MultiClassOneVsAll".split()) | _BINARY | _SEVERAL_LABELS
_EXP = frozenset("Poisson Tweedie".split())


@dataclass(frozen=True)
class CatBoostModel:
    """The booster, and what CatBoost's scikit-learn classes say of it."""

    booster: Booster
    """Its link gives probabilities for a classifier, and predictions else."""
    is_classifier: bool
    labels: tuple[Any, ...]
    """Of the classes; empty for numbers from 0."""


def read_catboost(value: Any, what: str) -> CatBoostModel:
    """The model in the value of a JSON file. Raises ModelError, which ``what`` names the file in."""
    info = _member(value, "features_info", dict, what)
    for kind in ("categorical", "text", "embedding"):
        others = info.get(f"{kind}_features") or []
        names = [each.get("feature_id") or each.get("flat_feature_index") for each in others if isinstance(each, dict)]
        refuse_other_features(kind, names if isinstance(others, list) and len(names) == len(others) else ["?"], what)
    found = []
    for each in _member(info, "float_features", list, what):
        index, position = (_member(each, name, int, what) for name in ("feature_index", "flat_feature_index"))
        treatment = str(each.get("nan_value_treatment", "AsIs"))
        found.append((index, position, treatment, str(each.get("feature_id", ""))))
    features = Features.of(found, what)
    scale, bias = _scale_and_bias(value, what)
    if "oblivious_trees" in value:
        forest = _symmetric(_member(value, "oblivious_trees", list, what), features, len(bias), what)
    else:
        forest = _others(_member(value, "trees", list, what), features, len(bias), what)
    return as_catboost(features, forest, scale, bias, value.get("model_info", {}), what)


def refuse_other_features(kind: str, names: Sequence[object], what: str) -> None:
    """Raise ModelError if there are features of a kind that Collage does not take."""
    if names:
        raise ModelError(
            f"{what} has {kind} features of CatBoost ({shown(names[0])}), which Collage does not take: encode them as "
            "numbers before CatBoost."
        )


def as_catboost(
    features: Features, forest: Sequence[Tree], scale: float, bias: tuple[float, ...], meta: Any, what: str
) -> CatBoostModel:
    """The model of its parts. ``meta`` is what the file says of the training."""
    targets = len(bias)
    if not np.isfinite((scale, *bias)).all():
        raise ModelError(f"{what}: its scale or bias is infinite or NaN. {DAMAGED}")
    if targets > 1 and forest:  # the sums are rounded to float32, which has to come last
        first, *others = (replace(each, leaves=each.leaves * scale) for each in forest)
        forest = [replace(first, leaves=first.leaves + np.array(bias)), *others]
    trees = _all_trees(forest, targets)
    check_trees(trees, features.count, what)
    loss = _loss(meta, what)
    is_classifier = loss in _CLASSES
    if loss == "RMSEWithUncertainty":
        raise ModelError(f"{what} predicts variances, too (RMSEWithUncertainty), which Collage does not take.")
    if is_classifier and (targets == 1) != (loss in _BINARY):
        raise ModelError(f"{what} has {targets} targets, which is wrong for {loss}. {DAMAGED}")
    several = loss in _SEVERAL_LABELS
    link: Link = "softmax" if loss == "MultiClass" else "exp" if loss in _EXP else "identity"
    if is_classifier and loss != "MultiClass":
        link = "sigmoid"
    booster = Booster(
        library=_version(meta),
        names=features.names,
        n_features=features.count,
        dtype=np.dtype(np.float32),
        trees=trees,
        scale=scale if targets == 1 else 1,
        bias=bias if targets == 1 else (),
        link=link,
        classes=max(2, targets) if is_classifier else 0,
        cut=_cut(meta, what) if loss in _BINARY or several else None,
        several_labels=several,
    )
    return CatBoostModel(booster, is_classifier, _labels(meta, what) if is_classifier and not several else ())


@dataclass(frozen=True)
class Features:
    """Features that are numbers: for each its number, its position in the input, and whether NaN is above all borders.

    ``count`` is the number of positions.
    """

    numbers: tuple[int, ...]
    positions: tuple[int, ...]
    above: tuple[bool, ...]
    count: int
    names: tuple[str, ...]

    @staticmethod
    def of(found: Sequence[tuple[int, int, str, str]], what: str) -> Features:
        """From the number of each feature, its position, how it treats NaN, and its name."""
        positions = tuple(each[1] for each in found)
        for numbers in (positions, [each[0] for each in found]):
            if len(set(numbers)) < len(found) or not 0 <= min(numbers, default=-1) <= max(numbers) < MOST_FEATURES:
                raise ModelError(f"{what}: its features are not numbered, or there are none. {DAMAGED}")
        for _, _, treatment, _ in found:
            if treatment not in ("AsIs", "AsFalse", "AsTrue"):
                raise ModelError(f"{what}: a feature treats NaN as {shown(treatment)}. {DAMAGED}")
        count = max(positions) + 1
        names = tuple(found[i][3] for i in np.argsort(positions).tolist())
        # Without names, CatBoost numbers them. Features that no tree reads may have been dropped.
        known = all(names) and len(names) == count and names != tuple(str(i) for i in range(count))
        above = tuple(each[2] == "AsTrue" for each in found)
        return Features(tuple(each[0] for each in found), positions, above, count, names if known else ())

    @cached_property
    def _indices(self) -> dict[int, int]:
        return {number: index for index, number in enumerate(self.numbers)}

    def split(self, value: Any, what: str) -> tuple[int, float]:
        """The index of the feature, and the border, of a split in JSON."""
        kind = value.get("split_type", "FloatFeature") if isinstance(value, dict) else None
        if kind != "FloatFeature":
            raise ModelError(f"{what} has splits of type {shown(kind)}, which Collage does not take.")
        feature = _member(value, "float_feature_index", int, what)
        border = _member(value, "border", (int, float), what)
        if feature not in self._indices:
            raise ModelError(f"{what}: a split reads a feature that the model does not have. {DAMAGED}")
        return self._indices[feature], border


@dataclass(frozen=True)
class Tree:
    """A tree, whose first node is its root. Features are numbers of float features."""

    features: Ints
    borders: Floats
    tracks: NDArray[np.bool_]
    true: Ints
    false: Ints
    leaves: Floats


def _symmetric(values: Sequence[Any], features: Features, targets: int, what: str) -> list[Tree]:
    """Trees with one split for each level. The first split is the lowest bit of the number of a leaf."""
    found = []
    for number, value in enumerate(values):
        name = f"{what}: tree {number}"
        splits = [features.split(each, name) for each in _member(value, "splits", list, name, none=[])]
        depth = len(splits)
        if depth > _DEEPEST_SYMMETRIC:
            raise ModelError(f"{name} has {depth} levels. {DAMAGED}")
        leaves = _doubles(_member(value, "leaf_values", list, name), name)
        if len(leaves) != targets << depth:
            raise ModelError(f"{name} has {len(leaves)} values of leaves for {depth} levels. {DAMAGED}")
        chosen = np.array([each[0] for each in splits], np.int64)
        borders = np.array([each[1] for each in splits], np.float64)
        found.append(symmetric_tree(features, chosen, borders, leaves.reshape(-1, targets)))
    return found


def symmetric_tree(features: Features, chosen: Ints, borders: Floats, leaves: Floats) -> Tree:
    """A tree with one split for each level, given the feature and the border of each."""
    depth = len(chosen)
    inner = (1 << depth) - 1
    level = depth - 1 - (np.frexp(np.arange(1, inner + 1))[1] - 1)  # of the split of each node
    # The children of node i are 2 i + 1 and 2 i + 2; from ``inner`` on they are leaves.
    low = 2 * np.arange(inner) + 1
    false, true = (np.where(side < inner, side, ~(side - inner)) for side in (low, low + 1))
    return Tree(
        features=np.array(features.positions)[chosen[level]],
        borders=borders[level],
        tracks=np.array(features.above)[chosen[level]],
        true=true,
        false=false,
        leaves=leaves,
    )


def _others(values: Sequence[Any], features: Features, targets: int, what: str) -> list[Tree]:
    """Trees of nested objects."""
    found = []
    for number, value in enumerate(values):
        name = f"{what}: tree {number}"
        chosen: list[int] = []
        borders: list[float] = []
        children: list[list[int]] = []
        leaves: list[Any] = []
        todo: list[tuple[Any, int, int, int]] = [(value, -1, 0, 0)]
        while todo:
            node, parent, side, depth = todo.pop()
            if depth > DEEPEST:
                raise ModelError(f"{name} is deeper than {DEEPEST:,} nodes, which Collage does not take.")
            if isinstance(node, dict) and "value" in node:
                index = ~len(leaves)
                leaves.append(node["value"])
            else:
                feature, border = features.split(_member(node, "split", dict, name), name)
                index = len(chosen)
                chosen.append(feature)
                borders.append(border)
                children.append([0, 0])
                todo.append((_member(node, "right", dict, name), index, 1, depth + 1))
                todo.append((_member(node, "left", dict, name), index, 0, depth + 1))
            if parent >= 0:
                children[parent][side] = index
        flat = [each for leaf in leaves for each in (leaf if isinstance(leaf, list) else [leaf])]
        sums = _doubles(flat, name)
        if len(sums) != targets * len(leaves):
            raise ModelError(f"{name} has leaves with the wrong number of values. {DAMAGED}")
        of = np.array(chosen, np.int64)
        pairs = np.array(children, np.int64).reshape(-1, 2)
        found.append(
            Tree(
                features=np.array(features.positions)[of],
                borders=np.array(borders, np.float64),
                tracks=np.array(features.above)[of],
                true=pairs[:, 1],
                false=pairs[:, 0],
                leaves=sums.reshape(-1, targets),
            )
        )
    return found


def _all_trees(forest: Sequence[Tree], targets: int) -> Trees:
    n_nodes, n_leaves = starts(len(each.features) for each in forest), starts(len(each.leaves) for each in forest)
    with np.errstate(over="ignore", invalid="ignore"):
        splits = joined([each.borders for each in forest], np.float64).astype(np.float32).astype(np.float64)
    leaves = joined([np.zeros((0, targets)), *(each.leaves for each in forest)], np.float64)
    return Trees(
        roots=np.where(np.diff(n_nodes) > 0, n_nodes[:-1], ~n_leaves[:-1]),
        features=joined([each.features for each in forest], np.int64),
        modes=np.full(len(splits), GT, np.uint8),
        splits=splits,
        tracks=joined([each.tracks for each in forest], np.bool_),
        true=in_all([each.true for each in forest], n_nodes, n_leaves),
        false=in_all([each.false for each in forest], n_nodes, n_leaves),
        leaves=leaves,
        targets=np.zeros(len(leaves), np.int64),
        n_targets=targets,
    )


def _scale_and_bias(value: Any, what: str) -> tuple[float, tuple[float, ...]]:
    """The scale, and the bias of each target."""
    scale, bias = 1.0, (0.0,)
    if "scale_and_bias" in value:
        found = _member(value, "scale_and_bias", list, what)
        if len(found) != 2 or not isinstance(found[1], list) or not found[1]:
            raise ModelError(f"{what} has no scale and bias. {DAMAGED}")
        (scale,), bias = _doubles(found[:1], what).tolist(), tuple(_doubles(found[1], what).tolist())
    return scale, bias


def _loss(meta: Any, what: str) -> str:
    """The loss that the model was trained with. A sum of models has none."""
    params = meta.get("params") if isinstance(meta, dict) else None
    loss = params.get("loss_function") if isinstance(params, dict) else None
    if loss is None:
        return ""
    return str(_member(loss, "type", str, what))


def _labels(meta: Mapping[str, Any], what: str) -> tuple[Any, ...]:
    params = meta.get("class_params")
    names = params.get("class_names") if isinstance(params, dict) else None
    if not names:
        return ()
    kinds = {"Integer": int, "Float": float, "String": str, "Boolean": bool}
    kind = kinds.get(str(params.get("class_label_type"))) if isinstance(params, dict) else None
    if (
        kind is None
        or not isinstance(names, list)
        or not all(isinstance(each, (bool, int, float, str)) for each in names)
    ):
        raise ModelError(f"{what}: the labels of its classes are not of a known type. {DAMAGED}")
    try:
        return tuple(map(kind, names))
    except (ValueError, OverflowError) as error:
        raise ModelError(f"{what}: the labels of its classes are not of their type. {DAMAGED}") from error


def _cut(meta: Mapping[str, Any], what: str) -> float:
    """The sum from which on the label is the second one."""
    text = meta.get("binclass_probability_threshold", "0.5") if isinstance(meta, dict) else "0.5"
    try:
        value = float(text)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{what}: its threshold of the probability is no number. {DAMAGED}") from error
    if not 0 < value < 1:
        raise ModelError(f"{what}: its threshold of the probability is {value:g}. {DAMAGED}")
    return -math.log(1 / value - 1)


def _version(meta: Any) -> str:
    text = str(meta.get("catboost_version_info", "")) if isinstance(meta, dict) else ""
    for line in text.splitlines():
        name, _, value = line.strip().partition(": ")
        if name == "Branch" and value.startswith("tags/v"):
            return f"catboost {shown(value.removeprefix('tags/v'))}"
    return "catboost"


def _member(value: Any, name: str, kind: type | tuple[type, ...], what: str, none: Any = None) -> Any:
    """A member of a JSON object, of the given type; ``none`` instead of null."""
    found = value.get(name) if isinstance(value, dict) else None
    found = none if found is None else found
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise ModelError(f"{what} has no {name}, or one of the wrong type. Is it a model of CatBoost?")
    return found


def _doubles(values: Sequence[Any], what: str) -> Floats:
    if not all(type(each) in (int, float) for each in values):
        raise ModelError(f"{what}: a value of a leaf is no number. {DAMAGED}")
    try:
        return np.array(values, np.float64)
    except OverflowError as error:
        raise ModelError(f"{what}: a value of a leaf is too large. {DAMAGED}") from error
