"""scikit-learn's trees, forests and gradient boosting as boosters. skl2onnx would round their thresholds and sums.

scikit-learn rounds a number to float32, compares it with a threshold of float64, and sums in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collage.errors import ModelError
from collage.frontend.trees.booster import Booster, Link
from collage.frontend.trees.ensemble import LEQ, Trees, check_trees, in_all, joined, starts

FORESTS = (
    *("DecisionTreeClassifier", "DecisionTreeRegressor", "ExtraTreeClassifier", "ExtraTreeRegressor"),
    *("RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor"),
    *("GradientBoostingClassifier", "GradientBoostingRegressor"),
)
"""The names of the classes."""


def takes(obj: Any) -> bool:
    """Whether it has one output, and gradient boosting starts from numbers."""
    init = type(getattr(obj, "init_", "")).__name__
    return getattr(obj, "n_outputs_", 1) == 1 and init in ("DummyClassifier", "DummyRegressor", "str")


def read_forest(obj: Any, what: str) -> Booster:
    """The booster of a fitted estimator that ``takes`` allows.

    Of a classifier that averages, the sums are probabilities, of the second class if there are two. Raises ModelError
    for trees that are none.
    """
    if not takes(obj):
        raise ModelError(f"{what} has several outputs, or starts from an estimator, which Collage does not take.")
    classes = len(obj.classes_) if hasattr(obj, "classes_") else 0
    boosted = hasattr(obj, "init_")
    trees = [each.tree_ for each in np.ravel(getattr(obj, "estimators_", [obj]))]
    targets = obj.estimators_.shape[1] if boosted else 1 if classes <= 2 else classes
    inner = [each.children_left >= 0 for each in trees]
    numbers = [np.where(each, np.cumsum(each) - 1, ~(np.cumsum(~each) - 1)) for each in inner]
    leaves = [tree.value[~side, 0, :] for tree, side in zip(trees, inner, strict=True)]
    if classes == 2 and not boosted:
        leaves = [each[:, 1:] for each in leaves]
    n_nodes, n_leaves = starts(int(side.sum()) for side in inner), starts(map(len, leaves))

    def nodes(name: str, dtype: Any) -> Any:
        return joined([getattr(tree, name)[side] for tree, side in zip(trees, inner, strict=True)], dtype).astype(dtype)

    true, false = (
        in_all(
            [of[getattr(tree, name)[side]] for tree, side, of in zip(trees, inner, numbers, strict=True)],
            n_nodes,
            n_leaves,
        )
        for name in ("children_left", "children_right")
    )
    of_tree = np.arange(len(trees)) % targets if boosted else np.zeros(len(trees), np.int64)
    found = Trees(
        roots=np.where(np.diff(n_nodes) > 0, n_nodes[:-1], ~n_leaves[:-1]),
        features=nodes("feature", np.int64),
        modes=np.full(int(n_nodes[-1]), LEQ, np.uint8),
        splits=nodes("threshold", np.float64),
        tracks=nodes("missing_go_to_left", np.bool_),
        true=true,
        false=false,
        leaves=np.concatenate(leaves).astype(np.float64),
        targets=np.repeat(of_tree, np.diff(n_leaves)),
        n_targets=targets,
    )
    check_trees(found, int(obj.n_features_in_), what)
    link: Link = "identity"
    if boosted and classes:
        link = "sigmoid" if targets == 1 else "softmax"
    start = obj._raw_predict_init(np.zeros((1, obj.n_features_in_), np.float32)) if boosted else ()
    return Booster(
        library="scikit-learn",
        names=tuple(map(str, getattr(obj, "feature_names_in_", ()))),
        n_features=int(obj.n_features_in_),
        dtype=np.dtype(np.float32),
        trees=found,
        divisor=1 if boosted else len(trees),
        scale=float(obj.learning_rate) if boosted else 1.0,
        bias=tuple(np.ravel(start).astype(np.float64).tolist()),
        link=link,
        slope=2.0 if boosted and getattr(obj, "loss", "") == "exponential" else 1.0,
        classes=max(2, targets) if classes else 0,
        cut=0.0 if boosted and classes and targets == 1 else None,
    )
