"""Generated ensembles of trees in ONNX's forms, and what they give, node by node in numpy."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "BRANCH_LEQ": operator.le,
    "BRANCH_LT": operator.lt,
    "BRANCH_GTE": operator.ge,
    "BRANCH_GT": operator.gt,
    "BRANCH_EQ": operator.eq,
    "BRANCH_NEQ": operator.ne,
}
MEMBER = "BRANCH_MEMBER"
MODES = (*COMPARISONS, MEMBER)
COLUMNS = 5


def shape_of_tree(rng: np.random.Generator, leaves: int) -> list[tuple[int, int] | None]:
    """A random tree: the children of each node, or None for a leaf."""
    nodes: list[tuple[int, int] | None] = [None]
    ends = [0]
    for _ in range(leaves - 1):
        at = ends.pop(int(rng.integers(len(ends))))
        nodes[at] = (len(nodes), len(nodes) + 1)
        ends += nodes[at]  # type: ignore[arg-type]
        nodes += [None, None]
    return nodes


def threshold(rng: np.random.Generator) -> float:
    """A number that inputs often equal, or seldom."""
    special = [0.0, -0.0, np.inf, -np.inf, 1e-42]
    return float(np.float32(rng.choice([rng.choice(special), rng.normal(), rng.integers(-3, 4)], p=[0.1, 0.45, 0.45])))


def rows(rng: np.random.Generator, count: int, dtype: Any, columns: int = COLUMNS) -> np.ndarray:
    """Inputs with ties, NaN, infinities, both zeros and denormal numbers."""
    x = np.where(
        rng.random((count, columns)) < 0.5, rng.integers(-3, 40, (count, columns)), rng.normal(size=(count, columns))
    )
    x = np.where(rng.random(x.shape) < 0.3, rng.integers(-3, 4, x.shape), x)
    for special in (np.nan, np.inf, -np.inf, -0.0, 1e-42):
        x[rng.random(x.shape) < 0.03] = special
    return x.astype(dtype)


def ensemble(
    rng: np.random.Generator,
    modes: Sequence[str],
    *,
    trees: int,
    leaves: int,
    targets: int = 1,
    missing: bool = False,
    dtype: Any = np.float32,
) -> dict[str, Any]:
    """Nodes of an ensemble by tree: lists of (feature, mode, threshold or set, true, false, NaN is true) or weights."""
    found = []
    for _ in range(trees):
        tree: list[Any] = []
        for children in shape_of_tree(rng, int(rng.integers(1, leaves + 1))):
            if children is None:
                tree.append([(k, float(np.float32(rng.normal()))) for k in range(targets)])
                continue
            mode = str(rng.choice(modes))
            value: Any = threshold(rng)
            if mode == MEMBER:
                value = sorted(rng.choice(np.arange(-3, 40), int(rng.integers(1, 12)), replace=False).tolist())
            tree.append((int(rng.integers(COLUMNS)), mode, value, *children, missing and bool(rng.integers(2))))
        found.append(tree)
    return {"trees": found, "targets": targets, "dtype": np.dtype(dtype)}


def expected(e: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """The sums of the ensemble for each row and target, in float64."""
    sums = np.zeros((len(x), e["targets"]))

    def walk(tree: list[Any], at: int, which: np.ndarray) -> None:
        node = tree[at]
        if isinstance(node, list):
            for target, weight in node:
                sums[which, target] += weight
            return
        feature, mode, value, true, false, nan_true = node
        number = x[which, feature]
        if mode == MEMBER:
            chosen = np.isin(number, np.array(value, x.dtype))
        else:
            chosen = COMPARISONS[mode](number, x.dtype.type(value))
        chosen |= nan_true & np.isnan(number)
        walk(tree, true, which[chosen])
        walk(tree, false, which[~chosen])

    for tree in e["trees"]:
        walk(tree, 0, np.arange(len(x)))
    return sums


def _tensor(values: Any, dtype: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype))


def as_nodes(rng: np.random.Generator, e: Mapping[str, Any], kind: str = "target") -> dict[str, Any]:
    """The attributes of the first versions, with nodes numbered at random; ``kind``: "target" or "class"."""
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    lists: dict[str, list[Any]] = {f"nodes_{name}": [] for name in (*names, "missing_value_tracks_true")}
    weights: list[tuple[int, int, int, float]] = []
    for number, tree in enumerate(e["trees"]):
        ids = [0, *(int(each) + 1 for each in rng.permutation(len(tree) - 1))]
        for at, node in enumerate(tree):
            row = (0, 0.0, "LEAF", 0, 0, 0)
            if isinstance(node, list):
                weights += [(number, ids[at], target, weight) for target, weight in node]
            else:
                feature, mode, value, true, false, nan_true = node
                row = (feature, value, mode, ids[true], ids[false], int(nan_true))
            for name, each in zip(lists, (number, ids[at], *row), strict=True):
                lists[name].append(each)
    trees, nodes, targets, numbers = zip(*weights, strict=True)
    lists |= {f"{kind}_treeids": [*trees], f"{kind}_nodeids": [*nodes], f"{kind}_ids": [*targets]}
    lists[f"{kind}_weights"] = [*numbers]
    if e["dtype"] == np.float64:
        for name in ("nodes_values", f"{kind}_weights"):
            lists[f"{name}_as_tensor"] = _tensor(lists.pop(name), np.float64)  # type: ignore[assignment]
    return lists


def as_tensors(e: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of version 5, whose leaves are apart."""
    names = ("featureids", "splits", "modes", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")
    lists: dict[str, list[Any]] = {f"nodes_{name}": [] for name in (*names, "missing_value_tracks_true")}
    roots, members = [], []
    leaf_targets, leaf_weights = [], []
    for tree in e["trees"]:
        begin = len(lists["nodes_modes"])
        inner = [at for at, node in enumerate(tree) if not isinstance(node, list)]
        place = {at: begin + i for i, at in enumerate(inner)}
        roots.append(begin)

        def leaf(at: int, tree: list[Any] = tree) -> int:
            ((target, weight),) = tree[at]
            leaf_targets.append(target)
            leaf_weights.append(weight)
            return len(leaf_weights) - 1

        for at in inner:
            feature, mode, value, true, false, nan_true = tree[at]
            if mode == MEMBER:
                members += [*value, np.nan]
                value = 0.0
            ends = [isinstance(tree[child], list) for child in (true, false)]
            to = [leaf(c) if is_leaf else place[c] for c, is_leaf in zip((true, false), ends, strict=True)]
            row = (feature, value, MODES.index(mode), to[0], int(ends[0]), to[1], int(ends[1]), int(nan_true))
            for name, each in zip(lists, row, strict=True):
                lists[name].append(each)
        if not inner:  # a tree of one leaf: both branches of a node lead to it
            for name, each in zip(lists, (0, 0.0, 0, leaf(0), 1, len(leaf_weights) - 1, 1, 0), strict=True):
                lists[name].append(each)
    found: dict[str, Any] = {**lists, "tree_roots": roots, "leaf_targetids": leaf_targets, "n_targets": e["targets"]}
    found["nodes_splits"] = _tensor(lists["nodes_splits"], e["dtype"])
    found["nodes_modes"] = _tensor(lists["nodes_modes"], np.uint8)
    found["leaf_weights"] = _tensor(leaf_weights, e["dtype"])
    if members:
        found["membership_values"] = _tensor(members, e["dtype"])
    return found


def model_of(
    op_type: str, attributes: Mapping[str, Any], dtype: Any, targets: int, version: int = 3
) -> onnx.ModelProto:
    """A model of one operator, for any number of rows; a classifier's labels are 0, 1, and so on."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = ["label", "scores"] if op_type == "TreeEnsembleClassifier" else ["scores"]
    node = helper.make_node(op_type, ["X"], names, domain="ai.onnx.ml", **attributes)
    made = kind if op_type == "TreeEnsemble" else TensorProto.FLOAT
    outputs = [helper.make_tensor_value_info("scores", made, ["rows", targets])]
    if len(names) > 1:
        outputs.insert(0, helper.make_tensor_value_info("label", TensorProto.INT64, ["rows"]))
    inputs = [helper.make_tensor_value_info("X", kind, ["rows", COLUMNS])]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(helper.make_graph([node], "trees", inputs, outputs), opset_imports=opsets, ir_version=9)
