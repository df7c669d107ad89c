"""scikit-learn's trees, forests and gradient boosting as ``Booster``, the normal form that the tree libraries share."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage.errors import ModelError
from collage.frontend.trees.booster import Booster, Link
from collage.frontend.trees.ensemble import LEQ, Trees, in_all, joined, starts


def sklearn_booster(op: Any) -> Booster:
    """The booster of a fitted tree, forest or gradient boosting of scikit-learn.

    Of a classifier that averages, the sums are probabilities, of the second class if there are two. Raises ModelError
    for several outputs, and for gradient boosting that starts from a model.
    """
    name = f"the {type(op).__name__}"
    if getattr(op, "n_outputs_", 1) > 1:
        raise ModelError(f"{name} has several outputs, which WindTunnel does not take.")
    classes = len(op.classes_) if hasattr(op, "classes_") else 0
    boosted = hasattr(op, "loss") and hasattr(op, "init_")
    singles = np.ravel(op.estimators_) if hasattr(op, "estimators_") else [op]
    trees = [each.tree_ for each in singles]
    targets = op.estimators_.shape[1] if boosted else 1 if classes <= 2 else classes
    inner = [each.children_left >= 0 for each in trees]
    numbers = [np.where(each, np.cumsum(each) - 1, ~(np.cumsum(~each) - 1)) for each in inner]
    leaves = []
    for tree, side in zip(trees, inner, strict=True):
        values = tree.value[~side, 0, :]
        if classes and not boosted:
            values = values / np.maximum(values.sum(1, keepdims=True), 1e-300)
            values = values[:, -1:] if classes == 2 else values
        leaves.append(values)
    n_nodes, n_leaves = starts(int(each.sum()) for each in inner), starts(map(len, leaves))

    def nodes(name: str, dtype: Any) -> Any:
        return joined([getattr(tree, name)[side] for tree, side in zip(trees, inner, strict=True)], dtype).astype(dtype)

    left, right = (
        in_all(
            [number[getattr(tree, side)[chosen]] for tree, chosen, number in zip(trees, inner, numbers, strict=True)],
            n_nodes,
            n_leaves,
        )
        for side in ("children_left", "children_right")
    )
    of_tree = np.arange(len(trees)) % targets if boosted else np.zeros(len(trees), np.int64)
    found = Trees(
        roots=np.where(np.diff(n_nodes) > 0, n_nodes[:-1], ~n_leaves[:-1]),
        features=nodes("feature", np.int64),
        modes=np.full(int(n_nodes[-1]), LEQ, np.uint8),
        splits=nodes("threshold", np.float64),
        tracks=nodes("missing_go_to_left", np.bool_),
        true=left,
        false=right,
        leaves=np.concatenate(leaves).astype(np.float64),
        targets=np.repeat(of_tree, np.diff(n_leaves)),
        n_targets=targets,
    )
    link: Link = "identity"
    slope = 1.0
    if boosted and classes:
        link = "sigmoid" if targets == 1 else "softmax"
        slope = 2.0 if op.loss == "exponential" else 1.0
    return Booster(
        library="scikit-learn",
        names=tuple(map(str, getattr(op, "feature_names_in_", ()))),
        n_features=int(op.n_features_in_),
        dtype=np.dtype(np.float32),
        trees=found,
        divisor=1 if boosted else len(trees),
        scale=float(op.learning_rate) if boosted else 1.0,
        bias=_start(op, name) if boosted else (),
        link=link,
        slope=slope,
        classes=classes,
    )


def _start(op: Any, name: str) -> tuple[float, ...]:
    """What gradient boosting starts from."""
    if type(op.init_).__name__ not in ("DummyClassifier", "DummyRegressor", "str"):
        raise ModelError(f"{name} starts from a {type(op.init_).__name__}, which WindTunnel does not take.")
    raw = op._raw_predict_init(np.zeros((1, op.n_features_in_), np.float32))
    return tuple(np.ravel(raw).astype(np.float64).tolist())
