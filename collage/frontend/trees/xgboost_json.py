"""XGBoost's models, as the value in their JSON or UBJSON files, without XGBoost.

A number goes left if it is less than the split, in float32, and sums are in float32, from the base score on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage.errors import ModelError
from collage.frontend.trees.booster import Booster, Categories, Link
from collage.frontend.trees.ensemble import (
    DAMAGED,
    EQ,
    LT,
    MEMBER,
    MOST_FEATURES,
    Floats,
    Ints,
    Trees,
    check_trees,
    in_all,
    joined,
    reached,
    shown,
    starts,
)

_RAW = frozenset(
    "reg:squarederror reg:linear reg:squaredlogerror reg:pseudohubererror reg:absoluteerror reg:quantileerror "
    "binary:logitraw rank:pairwise rank:ndcg rank:map".split()
)
_EXP = frozenset("count:poisson reg:gamma reg:tweedie survival:cox survival:aft".split())
_LOGISTIC = frozenset("reg:logistic binary:logistic".split())
"""Their base score is a probability. That of binary:logitraw is a sum since XGBoost 2."""
_LEAST = np.float32(1e-6)
_OFFSET = 1 << 24
"""XGBoost takes no category from here on."""
_MOST_GROUPS = 1 << 16


def read_xgboost(value: Any, what: str) -> Booster:
    """The booster in the value of a model file. Raises ModelError, which ``what`` names the file in."""
    learner = _member(value, "learner", dict, what)
    param = _member(learner, "learner_model_param", dict, what)
    kind = _member(_member(learner, "gradient_booster", dict, what), "name", str, what)
    if kind == "gblinear":
        raise ModelError(f"{what} is a linear booster (gblinear) of XGBoost, which Collage does not take.")
    booster = _member(learner, "gradient_booster", dict, what)
    if kind == "dart":
        weights: Floats | None = _floats(_member(booster, "weight_drop", (list, np.ndarray), what), "weight_drop", what)
        booster = _member(booster, "gbtree", dict, what)
    elif kind == "gbtree":
        weights = None
    else:
        raise ModelError(f"{what} has XGBoost's booster {shown(kind)}, which Collage does not know.")
    model = _member(booster, "model", dict, what)
    n_features = _number(param, "num_feature", what)
    groups = max(1, _number(param, "num_class", what, 0), _number(param, "num_target", what, 1))
    if not 1 <= n_features <= MOST_FEATURES or groups > _MOST_GROUPS:
        raise ModelError(f"{what} has {n_features} features and {groups} targets. {DAMAGED}")
    objective = _member(_member(learner, "objective", dict, what), "name", str, what)
    link, probabilities = _objective(objective, what)
    base = _base(param, groups, objective, what)
    forest = [_tree(each, groups, f"{what}: tree {i}") for i, each in enumerate(_member(model, "trees", list, what))]
    given = _ints(_member(model, "tree_info", (list, np.ndarray), what), "tree_info", what)
    count = _number(_member(model, "gbtree_model_param", dict, what), "num_trees", what)
    if not count == len(forest) == len(given) or (weights is not None and len(weights) != count):
        raise ModelError(f"{what} has {len(forest)} trees, and says that it has {count}. {DAMAGED}")
    if len(given) and not 0 <= given.min() <= given.max() < groups:
        raise ModelError(f"{what}: a tree is for a target that the model does not have. {DAMAGED}")
    trees = _all_trees(forest, given, groups, base, weights, what)
    check_trees(trees, n_features, what)
    names = learner.get("feature_names") or ()
    if not isinstance(names, list) or len(names) != n_features or not all(isinstance(each, str) for each in names):
        names = ()
    version = ".".join(map(str, _ints(value.get("version", ()), "version", what).tolist()))
    return Booster(
        library=f"xgboost {version}".strip(),
        names=tuple(names),
        n_features=n_features,
        dtype=np.dtype(np.float32),
        trees=trees,
        categories=_categorical(forest, what),
        link=link,
        classes=(2 if groups == 1 else groups) if probabilities else 0,
    )


def _objective(name: str, what: str) -> tuple[Link, bool]:
    """The link of an objective, and whether it gives probabilities of classes."""
    if name in ("binary:logistic", "reg:logistic"):
        return "sigmoid", name == "binary:logistic"
    if name == "multi:softprob":
        return "softmax", True
    if name == "multi:softmax":
        return "arg max", False
    if name == "binary:hinge":
        return "step", False
    if name in _EXP:
        return "exp", False
    if name in _RAW:
        return "identity", False
    raise ModelError(f"{what} has XGBoost's objective {shown(name)}, which Collage does not know.")


def _base(param: Mapping[str, Any], groups: int, objective: str, what: str) -> Floats:
    """What the sum of each target starts from. The file has it as a prediction."""
    text = _member(param, "base_score", str, what)
    try:
        with np.errstate(over="ignore"):
            found = np.atleast_1d(np.array(json.loads(text), np.float32))
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise ModelError(f"{what}: the base score {shown(text)} is no number. {DAMAGED}") from error
    if found.shape not in ((1,), (groups,)) or not np.isfinite(found).all():
        raise ModelError(f"{what}: the base score {shown(text)} is not for {groups} targets. {DAMAGED}")
    if objective in _LOGISTIC:
        if not ((found >= 0) & (found <= 1)).all():
            raise ModelError(f"{what}: the base score {shown(text)} is no probability. {DAMAGED}")
        found = np.clip(found, _LEAST, np.float32(1) - _LEAST)  # as XGBoost does
        found = -np.log(np.float32(1) / found - np.float32(1))
    elif objective in _EXP:
        if not (found > 0).all():
            raise ModelError(f"{what}: the base score {shown(text)} is not positive, so its sums are infinite.")
        found = np.log(found)
    return np.broadcast_to(found.astype(np.float32), (groups,))


@dataclass(frozen=True)
class _Tree:
    """A tree, with an entry for each inner node that is reached, and one for each leaf. The root is the first."""

    features: Ints
    splits: Floats
    tracks: NDArray[np.bool_]
    """Whether NaN goes to the true child: for a set of categories that is the right one, else the left one."""
    modes: NDArray[np.uint8]
    true: Ints
    false: Ints
    leaves: Floats
    sets: list[Floats]


def _tree(value: Any, groups: int, what: str) -> _Tree:
    width = max(1, _number(_member(value, "tree_param", dict, what), "size_leaf_vector", what, 1))
    if width not in (1, groups):
        raise ModelError(f"{what} has leaves for {width} targets, and the model has {groups}. {DAMAGED}")
    left = _ints(_array(value, "left_children", what), "left_children", what)
    many = len(left)
    right, features, types, defaults = (
        _sized(_ints(_array(value, name, what), name, what), many, name, what)
        for name in ("right_children", "split_indices", "split_type", "default_left")
    )
    splits = _sized(_floats(_array(value, "split_conditions", what), "split_conditions", what), many, "splits", what)
    if many < 1 or left.min() < -1 or left.max() >= many:
        raise ModelError(f"{what}: a child of a node is out of range. {DAMAGED}")
    inner = left >= 0
    if inner.any() and not 0 <= right[inner].min() <= right[inner].max() < many:
        raise ModelError(f"{what}: a child of a node is out of range. {DAMAGED}")
    numbers = np.where(inner, np.cumsum(inner) - 1, ~(np.cumsum(~inner) - 1))
    inner_of, leaf_of = np.flatnonzero(inner), np.flatnonzero(~inner)
    true, false = numbers[left[inner]], numbers[right[inner]]
    used, used_leaves = reached(numbers[:1], true, false, len(leaf_of), what)
    if not (used.all() and used_leaves.all()):  # nodes that XGBoost has pruned stay in its files
        new_nodes, new_leaves = np.cumsum(used) - 1, np.cumsum(used_leaves) - 1
        true, false = (
            np.where(side < 0, ~new_leaves[np.maximum(~side, 0)], new_nodes[np.maximum(side, 0)])
            for side in (true[used], false[used])
        )
        inner_of, leaf_of = inner_of[used], leaf_of[used_leaves]
    features, splits_of, tracks = features[inner_of], splits[inner_of], defaults[inner_of] != 0
    modes = np.full(len(inner_of), LT, np.uint8)
    sets: list[Floats] = []
    categorical = types[inner_of] == 1
    if not np.isin(types[inner_of], (0, 1)).all():
        raise ModelError(f"{what}: a split of an unknown type. {DAMAGED}")
    if categorical.any():
        # The categories in the set go right.
        true[categorical], false[categorical] = false[categorical], true[categorical]
        tracks[categorical] = ~tracks[categorical]
        chosen = _categories(value, what)
        for at in np.flatnonzero(categorical).tolist():
            values = chosen.get(int(inner_of[at]))
            if values is None:
                raise ModelError(f"{what}: a node has no set of categories. {DAMAGED}")
            modes[at] = MEMBER if len(values) > 1 else EQ
            splits_of[at] = 0 if len(values) > 1 else values[0]
            if len(values) > 1:
                sets.append(values)
    return _Tree(
        features, splits_of, tracks, modes, true, false, _leaves(value, splits, right, leaf_of, width, what), sets
    )


def _leaves(value: Any, splits: Floats, right: Ints, leaf_of: Ints, width: int, what: str) -> Floats:
    """[leaves, width]: the values of the leaves, which are the nodes ``leaf_of``."""
    if width == 1:
        return splits[leaf_of][:, None]
    if "leaf_weights" in value:
        found, rows = _floats(_array(value, "leaf_weights", what), "leaf_weights", what), right[leaf_of]
    else:  # before XGBoost 3.1
        found, rows = _floats(_array(value, "base_weights", what), "base_weights", what), leaf_of
    if len(found) % width or (len(rows) and not 0 <= rows.min() <= rows.max() < len(found) // width):
        raise ModelError(f"{what}: a leaf has no values. {DAMAGED}")
    return found.reshape(-1, width)[rows]


def _categories(value: Any, what: str) -> dict[int, Floats]:
    """The categories in the set of each node that has one."""
    names = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
    values, nodes, firsts, sizes = (_ints(_array(value, name, what), name, what) for name in names)
    if not len(nodes) == len(firsts) == len(sizes) or len(np.unique(nodes)) < len(nodes):
        raise ModelError(f"{what}: the sets of categories are not those of its nodes. {DAMAGED}")
    outside = (sizes < 1) | (firsts < 0) | (firsts > len(values) - sizes)
    if outside.any() or sizes.sum() > len(values):  # they do not overlap
        raise ModelError(f"{what}: a set of categories is empty or out of range. {DAMAGED}")
    if len(values) and not 0 <= values.min() <= values.max() < _OFFSET:
        raise ModelError(f"{what}: a category is below 0 or above 16,777,215. {DAMAGED}")
    spans = zip(nodes.tolist(), firsts.tolist(), sizes.tolist(), strict=True)
    return {node: np.unique(values[start : start + size]).astype(np.float32) for node, start, size in spans}


def _all_trees(
    forest: Sequence[_Tree], groups_of: Ints, groups: int, base: Floats, weights: Floats | None, what: str
) -> Trees:
    """All trees. The base score is added to the leaves of the first tree of each target, as the sum starts with it."""
    widths = {each.leaves.shape[1] for each in forest}
    if len(widths) > 1:
        raise ModelError(f"{what} has trees for one target, and for several, which Collage does not take.")
    leaves = [each.leaves for each in forest]
    if weights is not None:
        leaves = [weight * each for weight, each in zip(weights, leaves, strict=True)]
    width = widths.pop() if widths else 1
    targets = groups_of.tolist()
    for target in range(groups):
        first = (0 if forest else None) if width > 1 else next((i for i, t in enumerate(targets) if t == target), None)
        if first is None:
            forest = [*forest, _leaf()]
            leaves.append(base[target : target + 1, None])
            targets.append(target)
        else:
            leaves[first] = leaves[first].copy()
            column = target if width > 1 else 0
            leaves[first][:, column] += base[target]
    n_nodes, n_leaves = starts(len(each.features) for each in forest), starts(map(len, leaves))
    return Trees(
        roots=np.where(np.diff(n_nodes) > 0, n_nodes[:-1], ~n_leaves[:-1]),
        features=np.concatenate([each.features for each in forest]),
        modes=np.concatenate([each.modes for each in forest]),
        splits=np.concatenate([each.splits for each in forest]),
        tracks=np.concatenate([each.tracks for each in forest]),
        true=in_all([each.true for each in forest], n_nodes, n_leaves),
        false=in_all([each.false for each in forest], n_nodes, n_leaves),
        leaves=np.concatenate(leaves),
        targets=np.repeat(targets, np.diff(n_leaves)),
        n_targets=groups,
        sets=tuple(each for tree in forest for each in tree.sets),
    )


def _leaf() -> _Tree:
    none, flags = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    empty = np.zeros(0, np.float32)
    return _Tree(none, empty, flags, np.zeros(0, np.uint8), none, none, empty[:, None], [])


def _categorical(forest: Sequence[_Tree], what: str) -> Categories:
    """The features that hold categories. Raises ModelError for one that is compared as a number, too."""
    chosen = [each.modes != LT for each in forest]
    found = np.unique(joined([t.features[c] for t, c in zip(forest, chosen, strict=True)], np.int64))
    others = joined([t.features[~c] for t, c in zip(forest, chosen, strict=True)], np.int64)
    both = np.intersect1d(found, others)
    if len(both):
        raise ModelError(f"{what} uses feature {both[0]} as categories and as a number, which Collage does not take.")
    return Categories(tuple(found.tolist()), toward_zero=False)


def _member(value: Any, name: str, kind: type | tuple[type, ...], what: str) -> Any:
    """A member of a JSON object, of the given type."""
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise ModelError(f"{what} has no {name}, or one of the wrong type. Is it a model of XGBoost?")
    return found


def _array(value: Any, name: str, what: str) -> Any:
    return _member(value, name, (list, np.ndarray), what)


def _number(value: Mapping[str, Any], name: str, what: str, default: int | None = None) -> int:
    """A number that is written as text."""
    if default is not None and name not in value:
        return default
    text = _member(value, name, str, what)
    try:
        return int(text)
    except ValueError as error:
        raise ModelError(f"{what}: {name} is {shown(text)}, and no number. {DAMAGED}") from error


def _ints(values: Any, name: str, what: str) -> Ints:
    found = _numbers(values, name, what, "iub")
    return found.astype(np.int64)


def _floats(values: Any, name: str, what: str) -> Floats:
    with np.errstate(over="ignore"):
        return _numbers(values, name, what, "iuf").astype(np.float32)


def _numbers(values: Any, name: str, what: str, kinds: str) -> NDArray[Any]:
    try:
        found = np.asarray(values) if len(values) else np.zeros(0, np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"{what}: {name} are no numbers. {DAMAGED}") from error
    if found.ndim != 1 or found.dtype.kind not in kinds:
        raise ModelError(f"{what}: {name} are no numbers of the right type. {DAMAGED}")
    return found


def _sized(found: NDArray[Any], count: int, name: str, what: str) -> Any:
    if len(found) != count:
        raise ModelError(f"{what}: {len(found)} values of {name}, and {count} nodes. {DAMAGED}")
    return found
