"""Model files of random trees, and what the libraries define that they predict."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
N_FEATURES = 4
CATEGORICAL = 3
"""The feature that holds categories."""


@dataclass(frozen=True)
class Written:
    """A file, and what it predicts for one row: the sums of the targets."""

    data: bytes
    sums: Callable[[Array], Sequence[float]]


@dataclass(frozen=True)
class _Node:
    feature: int
    threshold: float
    categories: tuple[int, ...]
    kind: int
    default_left: bool
    left: int
    right: int


def _random_tree(rng: np.random.Generator, leaves: int, categorical: bool) -> tuple[list[_Node], list[float]]:
    """Nodes as LightGBM numbers them: a child is a node, or ~leaf, and each node was a leaf before."""
    nodes: list[_Node] = []
    for new in range(leaves - 1):
        split = int(rng.integers(0, new + 1))  # the leaf that becomes a node
        for at, node in enumerate(nodes):
            for side in ("left", "right"):
                if getattr(node, side) == ~split:
                    nodes[at] = _Node(**{**vars(node), side: new})
        feature = int(rng.integers(0, N_FEATURES if categorical else CATEGORICAL))
        chosen = rng.choice(40, int(rng.integers(1, 9)), replace=False)
        categories = tuple(sorted(chosen.tolist())) if feature == CATEGORICAL else ()
        threshold = float(rng.choice([rng.standard_normal(), rng.integers(-2, 3), 1e-36, -1e-36, 0.0]))
        kind = 0 if categories else (feature if feature < 3 else 0)
        nodes.append(_Node(feature, threshold, categories, kind, bool(rng.integers(0, 2)), ~split, ~(new + 1)))
    return nodes, rng.standard_normal(leaves).tolist()


def lightgbm(seed: int, sizes: Sequence[int] = (5, 1, 9, 2), *, categorical: bool = True, header: str = "") -> Written:
    """A file of LightGBM. NaN is zero in feature 0; zero is missing in feature 1, and NaN in feature 2."""
    rng = np.random.default_rng(seed)
    trees = [_random_tree(rng, size, categorical) for size in sizes]
    blocks = []
    for number, (nodes, values) in enumerate(trees):
        words: list[int] = []
        bounds, thresholds = [0], []
        for node in nodes:
            thresholds.append(repr(len(bounds) - 1 if node.categories else node.threshold))
            if node.categories:
                bits = sum(1 << each for each in node.categories)
                words += [bits & 0xFFFFFFFF, bits >> 32]
                bounds.append(len(words))
        lines = {
            "num_leaves": len(values),
            "num_cat": len(bounds) - 1,
            "split_feature": [node.feature for node in nodes],
            "threshold": thresholds,
            "decision_type": [bool(n.categories) | n.default_left << 1 | n.kind << 2 for n in nodes],
            "left_child": [node.left for node in nodes],
            "right_child": [node.right for node in nodes],
            "leaf_value": [repr(value) for value in values],
            **({"cat_boundaries": bounds, "cat_threshold": words} if words else {}),
            "is_linear": 0,
        }
        text = "\n".join(f"{k}={' '.join(map(str, v)) if isinstance(v, list) else v}" for k, v in lines.items())
        blocks.append(f"Tree={number}\n{text}\n\n\n")
    head = (
        f"tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx={N_FEATURES - 1}\n"
        f"objective=regression\n{header}feature_names={' '.join(f'f{i}' for i in range(N_FEATURES))}\n"
        f"tree_sizes={' '.join(str(len(each)) for each in blocks)}\n\n"
    )
    data = (
        head + "".join(blocks) + "end of trees\n\nfeature_importances:\n\nparameters:\nend of parameters\n"
    ).encode()

    def leaf(tree: tuple[list[_Node], list[float]], row: Array) -> float:
        nodes, values = tree
        at = 0 if nodes else -1
        while at >= 0:
            node = nodes[at]
            x = float(row[node.feature])
            if abs(x) <= float(np.float32(1e-35)):
                x = 0.0
            if node.categories:
                left = not np.isnan(x) and -(2**31) < x < 2**31 and int(x) >= 0 and int(x) in node.categories
            else:
                if np.isnan(x) and node.kind != 2:
                    x = 0.0
                missing = (node.kind == 1 and x == 0) or (node.kind == 2 and np.isnan(x))
                left = node.default_left if missing else x <= node.threshold
            at = node.left if left else node.right
        return values[~at]

    def sums(row: Array) -> list[float]:
        total = 0.0
        for tree in trees:
            total += leaf(tree, row)
        return [total]

    return Written(data, sums)


def xgboost(seed: int, sizes: Sequence[int] = (5, 1, 9, 2), *, base: str = "[2.5E-1,-1E0]") -> Written:
    """The JSON of XGBoost for two targets. The trees take turns, and node 2 of some trees was pruned."""
    rng = np.random.default_rng(seed)
    trees = [_random_tree(rng, size, categorical=True) for size in sizes]
    values = []
    for number, (nodes, leaves) in enumerate(trees):
        many = len(nodes)

        def place(child: int, many: int = many) -> int:
            return child if child >= 0 else many + ~child

        categorical = [i for i, node in enumerate(nodes) if node.categories]
        sizes_of = [len(nodes[i].categories) for i in categorical]
        total = many + len(leaves)
        left = [place(node.left) for node in nodes] + [-1] * len(leaves)
        if not nodes:
            left = [-1]
        pruned = number % 2 == 0  # a leaf that no path leads to
        zeros = [0] * (len(leaves) + pruned)
        values.append(
            {
                "tree_param": {"num_nodes": str(total), "size_leaf_vector": "1", "num_deleted": str(int(pruned))},
                "left_children": left + [-1] * pruned,
                "right_children": [place(node.right) for node in nodes] + [-1] * (len(leaves) + pruned),
                "split_indices": [node.feature for node in nodes] + zeros,
                "split_conditions": [float(np.float32(n.threshold)) for n in nodes]
                + [float(np.float32(each)) for each in leaves]
                + [7.0] * pruned,
                "split_type": [int(bool(node.categories)) for node in nodes] + zeros,
                "default_left": [int(node.default_left) for node in nodes] + zeros,
                "categories": [each for i in categorical for each in nodes[i].categories],
                "categories_nodes": categorical,
                "categories_segments": np.cumsum([0, *sizes_of])[:-1].tolist() if categorical else [],
                "categories_sizes": sizes_of,
            }
        )
    model = {
        "version": [3, 2, 0],
        "learner": {
            "learner_model_param": {
                "base_score": base,
                "num_class": "0",
                "num_feature": str(N_FEATURES),
                "num_target": "2",
            },
            "objective": {"name": "reg:squarederror"},
            "feature_names": [],
            "gradient_booster": {
                "name": "gbtree",
                "model": {
                    "gbtree_model_param": {"num_trees": str(len(trees))},
                    "tree_info": [number % 2 for number in range(len(trees))],
                    "trees": values,
                },
            },
        },
    }

    def leaf(tree: tuple[list[_Node], list[float]], row: Array) -> np.float32:
        nodes, leaves = tree
        at = 0 if nodes else -1
        while at >= 0:
            node = nodes[at]
            x = np.float32(row[node.feature])
            if np.isnan(x):
                go_left = node.default_left
            elif node.categories:
                go_left = not (0 <= x < 1 << 24 and int(x) in node.categories)
            else:
                go_left = bool(x < np.float32(node.threshold))
            at = node.left if go_left else node.right
        return np.float32(leaves[~at])

    def sums(row: Array) -> list[float]:
        found = np.array(json.loads(base), np.float32)
        for number, tree in enumerate(trees):
            found[number % 2] += leaf(tree, row)
        return found.tolist()

    return Written(json.dumps(model).encode(), sums)


def catboost(seed: int, depths: Sequence[int] = (3, 0, 1, 5), targets: int = 1) -> Written:
    """The JSON of CatBoost. NaN is below all borders of features 0, 1 and 2, and above those of feature 3."""
    rng = np.random.default_rng(seed)
    borders = [sorted({float(np.float32(each)) for each in rng.standard_normal(4).round(1)}) for _ in range(N_FEATURES)]
    features = [
        {"feature_index": i, "flat_feature_index": i, "borders": borders[i], "nan_value_treatment": how}
        for i, how in enumerate(("AsIs", "AsFalse", "AsFalse", "AsTrue"))
    ]
    trees = []
    for depth in depths:
        chosen = rng.integers(0, N_FEATURES, depth).tolist()
        splits = [
            {"float_feature_index": each, "border": float(rng.choice(borders[each])), "split_type": "FloatFeature"}
            for each in chosen
        ]
        trees.append({"splits": splits, "leaf_values": rng.standard_normal(targets << depth).tolist()})
    bias = rng.standard_normal(targets).tolist()
    model = {
        "features_info": {"float_features": features},
        "oblivious_trees": trees,
        "scale_and_bias": [0.5, bias],
        "model_info": {"params": {"loss_function": {"type": "RMSE" if targets == 1 else "MultiRMSE"}}},
    }

    def sums(row: Array) -> list[float]:
        found = np.zeros(targets)
        for tree in trees:
            number = 0
            for level, split in enumerate(tree["splits"]):
                x = np.float32(row[split["float_feature_index"]])
                above = split["float_feature_index"] == 3 if np.isnan(x) else x > np.float32(split["border"])
                number |= int(above) << level
            found += tree["leaf_values"][number * targets : (number + 1) * targets]
        return (found * 0.5 + bias).tolist()

    return Written(json.dumps(model).encode(), sums)


def ubjson(value: Any) -> bytes:
    """A value as XGBoost writes it: lists of numbers are arrays of one type."""
    if isinstance(value, dict):
        return b"{" + b"".join(_length(name) + ubjson(each) for name, each in value.items()) + b"}"
    if isinstance(value, str):
        return b"S" + _length(value)
    if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
        return b"[$l#L" + struct.pack(">q", len(value)) + struct.pack(f">{len(value)}i", *value)
    if isinstance(value, list) and value and all(isinstance(each, float) for each in value):
        return b"[$d#L" + struct.pack(">q", len(value)) + struct.pack(f">{len(value)}f", *value)
    if isinstance(value, list):
        return b"[#L" + struct.pack(">q", len(value)) + b"".join(map(ubjson, value))
    return b"l" + struct.pack(">i", value)


def _length(text: str) -> bytes:
    return b"L" + struct.pack(">q", len(text.encode())) + text.encode()


def hostile_rows(seed: int, data: bytes, count: int = 50) -> Array:
    """Rows of numbers beside and on the thresholds in a file, NaN, infinities, zeros of both signs, and categories."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, N_FEATURES))
    rows[:, CATEGORICAL] = rng.integers(-3, 45, count)
    for word in data.decode().replace(",", " ").replace("=", " ").split():
        try:
            value = float(word)
        except ValueError:
            continue
        rows[rng.integers(0, count), rng.integers(0, CATEGORICAL)] = value
    limit = float(np.float32(1e-35))
    for special in (
        np.nan,
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        limit,
        -limit,
        2 * limit,
        1e-36,
        1e10,
        2.5,
        -0.5,
        1e300,
    ):
        rows[rng.integers(0, count, 2), rng.integers(0, N_FEATURES, 2)] = special
    return rows
