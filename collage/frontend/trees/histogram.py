"""scikit-learn's HistGradientBoosting estimators as boosters. skl2onnx would round their thresholds and sums.

A number goes left if it is at most the threshold, in float64, and sums are in float64, from the baseline on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collage.errors import ModelError
from collage.frontend.trees.booster import Booster, Link
from collage.frontend.trees.ensemble import LEQ, Trees, check_trees, in_all, joined, starts

_LINKS: dict[str, Link] = {
    "IdentityLink": "identity",
    "LogLink": "exp",
    "LogitLink": "sigmoid",
    "MultinomialLogit": "softmax",
}


def read_histogram(obj: Any, what: str) -> Booster:
    """The booster of a fitted estimator. Raises ModelError for one with categorical features."""
    link = _LINKS.get(type(obj._loss.link).__name__)
    if link is None:
        raise ModelError(f"{what} has the link {type(obj._loss.link).__name__}, which Collage does not know.")
    nodes = [each.nodes for of_round in obj._predictors for each in of_round]
    if getattr(obj, "_preprocessor", None) is not None or any(each["is_categorical"].any() for each in nodes):
        raise ModelError(f"{what} has categorical features, which Collage does not take: encode them as numbers first.")
    targets = int(obj.n_trees_per_iteration_)
    inner = [each["is_leaf"] == 0 for each in nodes]
    numbers = [np.where(each, np.cumsum(each) - 1, ~(np.cumsum(~each) - 1)) for each in inner]
    leaves = [each["value"][~side].astype(np.float64) for each, side in zip(nodes, inner, strict=True)]
    # Sums start from the baseline: it is added to the leaves of the first tree of each target.
    for target, base in enumerate(np.ravel(obj._baseline_prediction).tolist()[: len(leaves)]):
        leaves[target] = base + leaves[target]
    chosen = joined([each[side] for each, side in zip(nodes, inner, strict=True)], nodes[0].dtype if nodes else None)
    n_nodes, n_leaves = starts(int(side.sum()) for side in inner), starts(map(len, leaves))
    true, false = (
        in_all(
            [of[each[name][side].astype(np.int64)] for each, side, of in zip(nodes, inner, numbers, strict=True)],
            n_nodes,
            n_leaves,
        )
        for name in ("left", "right")
    )
    trees = Trees(
        roots=np.where(np.diff(n_nodes) > 0, n_nodes[:-1], ~n_leaves[:-1]),
        features=chosen["feature_idx"].astype(np.int64),
        modes=np.full(len(chosen), LEQ, np.uint8),
        splits=chosen["num_threshold"].astype(np.float64),
        tracks=chosen["missing_go_to_left"] != 0,
        true=true,
        false=false,
        leaves=joined(leaves, np.float64)[:, None],
        targets=np.repeat(np.arange(len(nodes)) % targets, np.diff(n_leaves)),
        n_targets=targets,
    )
    check_trees(trees, int(obj.n_features_in_), what)
    is_classifier = hasattr(obj, "classes_")
    return Booster(
        library="scikit-learn",
        names=tuple(map(str, getattr(obj, "feature_names_in_", ()))),
        n_features=int(obj.n_features_in_),
        dtype=np.dtype(np.float64),
        trees=trees,
        link=link,
        classes=max(2, targets) if is_classifier else 0,
        cut=0.0 if is_classifier and targets == 1 else None,
    )
