"""ONNX's ensembles of trees as steps of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.tables_kernels.build import Array, Builder, Given, Operator, Value, shaped
from collage.backends.tables_kernels.cut import cut
from collage.backends.tables_kernels.ensemble import LEAF, Ensemble, from_branches, narrowed
from collage.backends.tables_kernels.operators import FLOATS, largest, mapped, softmax
from collage.backends.tables_kernels.pack import MOST_DENSE, Direct, Packed, add_bins, add_trees, choose
from collage.frontend.messages import NodeProto
from collage.native.table import BLOCKS, SINGLE, WALKED, Column, register_rows

Attributes = Mapping[str, Any]

_MODES = np.array("LEQ LT GTE GT EQ NEQ MEMBER".split())
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _numbers(a: Attributes, name: str, dtype: str) -> Array:
    """Numbers that are an attribute, or a tensor where they are doubles."""
    found = a.get(f"{name}_as_tensor", a.get(name, np.zeros(0, np.float32)))
    if found.dtype == np.float64 and dtype != "float64":
        raise UnsupportedError(f"{name} of float64 for an input of {dtype}")
    return np.asarray(found, dtype)


def _nodes_of(a: Attributes, dtype: str, prefix: str, targets: int) -> Ensemble:
    """The ensemble of the first versions, whose leaves are nodes; weights are named ``prefix``."""
    trees, numbers = a["nodes_treeids"], a["nodes_nodeids"]
    count = len(trees)
    modes = np.array(a["nodes_modes"])
    threshold = _numbers(a, "nodes_values", dtype)
    fields = [a["nodes_featureids"], a["nodes_truenodeids"], a["nodes_falsenodeids"], modes, threshold, numbers]
    if not count or any(len(each) != count for each in fields):
        raise UnsupportedError("lists of nodes of different lengths")
    missing = a.get("nodes_missing_value_tracks_true", np.zeros(0, np.int64))
    nan_true = np.zeros(count, bool)
    nan_true[: len(missing)] = missing[:count] == 1
    new = np.flatnonzero(np.concatenate([[True], trees[1:] != trees[:-1]]))
    if len(np.unique(trees)) != len(new):
        raise UnsupportedError("nodes of a tree that are not behind each other")
    index = _Index(trees, numbers)
    inner = modes != "LEAF"
    true, false = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    true[inner] = index.of(trees[inner], a["nodes_truenodeids"][inner])
    false[inner] = index.of(trees[inner], a["nodes_falsenodeids"][inner])
    weight = _numbers(a, f"{prefix}_weights", dtype)
    at = index.of(a[f"{prefix}_treeids"], a[f"{prefix}_nodeids"])
    target = a[f"{prefix}_ids"]
    if not len(weight) == len(at) == len(target) or not len(at) or not 0 <= target.min() <= target.max() < targets:
        raise UnsupportedError("weights without nodes or targets")
    return from_branches(
        modes=modes,
        feature=a["nodes_featureids"],
        threshold=threshold,
        true=true,
        false=false,
        nan_true=nan_true,
        roots=new,
        targets=targets,
        weights=(at, target, weight),
    )


class _Index:
    """The places of nodes by tree and number."""

    def __init__(self, trees: Array, numbers: Array) -> None:
        self._trees, place = np.unique(trees, return_inverse=True)
        if numbers.min(initial=0) < 0 or numbers.max(initial=0) >= 1 << 40:
            raise UnsupportedError("nodes with numbers that are too large")
        self._span = int(numbers.max(initial=0)) + 1
        keys = place * self._span + numbers
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        if (self._keys[1:] == self._keys[:-1]).any():
            raise UnsupportedError("two nodes of a tree have the same number")

    def of(self, trees: Array, numbers: Array) -> Array:
        """The places of these nodes. Raises UnsupportedError for one that is not there."""
        tree = np.searchsorted(self._trees, trees)
        tree = np.minimum(tree, len(self._trees) - 1)
        keys = tree * self._span + numbers
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known = (self._trees[tree] == trees) & (self._keys[at] == keys) & (numbers >= 0) & (numbers < self._span)
        if not known.all():
            raise UnsupportedError("a tree names a node that is not there")
        return np.asarray(self._order[at])


def _tensors_of(a: Attributes, dtype: str) -> Ensemble:
    """The ensemble of version 5, whose leaves are apart. Each reference to a leaf becomes a node."""
    split = a["nodes_splits"]
    if split.dtype != dtype or a["leaf_weights"].dtype != dtype:
        raise UnsupportedError(f"trees of {split.dtype} for an input of {dtype}")
    count = len(split)
    fields = ("featureids", "truenodeids", "trueleafs", "falsenodeids", "falseleafs", "modes")
    if not count or any(len(a[f"nodes_{name}"]) != count for name in fields):
        raise UnsupportedError("lists of nodes of different lengths")
    modes = np.char.add("BRANCH_", _MODES[a["nodes_modes"].astype(np.int64)])
    sides, leaves, leaf_at = [], [], []
    for side, begin in (("true", count), ("false", 2 * count)):
        child, is_leaf = a[f"nodes_{side}nodeids"], a[f"nodes_{side}leafs"] != 0
        if child.min() < 0 or child[is_leaf].max(initial=-1) >= len(a["leaf_weights"]):
            raise UnsupportedError("a node of a tree has a child that is not there")
        if child[~is_leaf].max(initial=-1) >= count:
            raise UnsupportedError("a node of a tree has a child that is not there")
        sides.append(np.where(is_leaf, begin + np.arange(count), child))
        leaves.append(child[is_leaf])
        leaf_at.append(begin + np.flatnonzero(is_leaf))
    leaf, at = np.concatenate(leaves), np.concatenate(leaf_at)
    targets, target = int(a.get("n_targets", 1)), a["leaf_targetids"]
    if len(target) != len(a["leaf_weights"]) or not 0 <= target.min() <= target.max() < targets:
        raise UnsupportedError("weights without targets")
    missing = a.get("nodes_missing_value_tracks_true", np.zeros(count, np.int64))

    def padded(values: Array, fill: Any) -> Array:
        return np.concatenate([values, np.full(2 * count, fill, values.dtype)])

    return from_branches(
        modes=np.concatenate([modes, np.full(2 * count, "LEAF")]),
        feature=padded(a["nodes_featureids"], 0),
        threshold=padded(split, 0),
        true=padded(sides[0], -1),
        false=padded(sides[1], -1),
        nan_true=padded(missing != 0, False),
        roots=a["tree_roots"],
        targets=targets,
        weights=(at, target[leaf], a["leaf_weights"][leaf]),
        sets=_sets(a, modes),
    )


def _sets(a: Attributes, modes: Array) -> dict[int, Array]:
    """The numbers of nodes that ask for membership: lists that NaN ends, in the order of the nodes."""
    nodes = np.flatnonzero(modes == "BRANCH_MEMBER").tolist()
    if not nodes:
        return {}
    numbers = a["membership_values"]
    ends = np.flatnonzero(np.isnan(numbers))
    parts = np.split(numbers, ends + 1)[: len(ends)]
    rest = numbers[ends[-1] + 1 :] if len(ends) else numbers
    parts = [each[:-1] for each in parts] + ([rest] if len(parts) < len(nodes) else [])
    if len(parts) != len(nodes):
        raise UnsupportedError("nodes that ask for membership without sets")
    return dict(zip(nodes, parts, strict=True))


_CUT_BY_ROW = 16
"""The most leaves, for each row of a register, of a tree that is visited in parts. Above it 10 rows walk faster."""
_TOGETHER = 32
"""The columns that are loaded and made bins of at a time: these of a block fit into a core's first cache."""


def _checked(e: Ensemble, value: Value) -> Ensemble:
    """The ensemble, whose columns are all there. Raises UnsupportedError if not."""
    if e.features > value.columns.size or e.feature[e.kind != LEAF].min(initial=0) < 0:
        raise UnsupportedError(f"trees of {e.features} columns for an input of {value.columns.size}")
    return e


def _bins(b: Builder, value: Value, e: Ensemble, packed: Packed, dtype: str) -> int:
    """The columns of bins that the trees compare. Returns the offset of the first one."""
    begin, count = b.program.new_bytes(len(packed.bins)), len(packed.bins)
    keys = [packed.splits.keys[column] for column, _ in packed.bins]
    room = b.program.new(dtype, min(count, _TOGETHER))
    for first in range(0, count, _TOGETHER):
        which = range(first, min(first + _TOGETHER, count))
        some = dict.fromkeys(value.columns[keys[i][0]] for i in which)
        made = b.columns(replace(value, columns=shaped(some, (len(some),))), dtype, room)
        given = dict(zip(some, made, strict=True))
        sources = [_split_column(b, e, given[value.columns[keys[i][0]]], keys[i], dtype, copied=False) for i in which]
        add_bins(b.program, begin, sources, packed, which)
    return begin


def _split_column(
    b: Builder, e: Ensemble, source: Column, key: tuple[int, bool, int], dtype: str, *, copied: bool
) -> Column:
    """What nodes compare of a feature: its numbers, 1 for members of a set, or with ``copied`` infinity for NaN."""
    _, nan_high, members = key
    if members < 0 and not (nan_high and copied):
        return source
    (made,) = b.program.new(dtype)
    if members < 0:
        b.program.step("unary", [source], [made], (dtype, "nan_high"))
    else:
        numbers = np.ascontiguousarray(e.sets[members], dtype)
        bits, limit = _bits(numbers)
        b.program.step(
            "member", [source], [made], (dtype, dtype), [numbers, bits], [len(numbers), int(nan_high), limit]
        )
    return made


_MOST_BITS = 1 << 16


def _bits(numbers: Array) -> tuple[Array, int]:
    """A bit for each whole number below a limit, which says if it is in the set; 0 if the set has other numbers."""
    if not len(numbers) or numbers[0] < 0 or numbers[-1] >= _MOST_BITS or (numbers != np.floor(numbers)).any():
        return np.zeros(1, np.uint64), 0
    limit = -(-(int(numbers[-1]) + 1) // 64) * 64
    found = np.zeros(limit, np.uint8)
    found[numbers.astype(np.int64)] = 1
    return np.packbits(found, bitorder="little").view(np.uint64), limit


def _direct(b: Builder, value: Value, keys: Sequence[tuple[int, bool, int]], dtype: str) -> Direct | None:
    """Where the columns of splits are in an input, if all of them are its numbers as they are."""
    given = [value.columns[feature] for feature, _, _ in keys]
    if not given or value.stored != dtype or any(members >= 0 for _, _, members in keys):
        return None
    sources = {each.source if isinstance(each, Given) else -1 for each in given}
    if len(sources) > 1 or -1 in sources or b.inputs[given[0].source].dtype != dtype:
        return None
    port = b.inputs[given[0].source]
    elements = [~c.number if high else c.number for c, (_, high, _) in zip(given, keys, strict=True)]
    return Direct(given[0].source, port.width, elements)


def sums_of(b: Builder, value: Value, e: Ensemble, dtype: str) -> Value:
    """The sums of the trees' leaf values in ``dtype``, for each target.

    Numbers of float32 are compared with the next lower ones of thresholds, which tells the same.
    """
    compared = "float32" if value.narrow else dtype
    value = value if value.narrow else b.cast(value, dtype)
    e = narrowed(e) if value.narrow else e
    e = _checked(e, value)
    e = e if b.walk_all else cut(e, MOST_DENSE, _CUT_BY_ROW * register_rows())
    packed = choose(e, walk_all=b.walk_all)
    sources: list[Column] = []
    walked = (packed.kinds == WALKED).any()
    direct = _direct(b, value, list(packed.splits.keys), compared) if walked or not packed.lanes else None
    if walked or not (packed.lanes or direct):
        b.program.only = (BLOCKS if direct else 0) if walked else SINGLE
        used = sorted({feature for feature, _, _ in packed.splits.keys})
        given = dict(zip(used, b.columns(replace(value, columns=value.columns[used]), compared), strict=True))
        sources = [_split_column(b, e, given[key[0]], key, compared, copied=True) for key in packed.splits.keys]
    b.program.only = 0 if packed.lanes else BLOCKS
    bins = _bins(b, value, e, packed, compared)
    b.program.only = 0
    return b.made(add_trees(b.program, e, packed, sources, bins, compared, dtype, direct), (e.targets,), dtype)


def _plus(b: Builder, value: Value, numbers: Array) -> Value:
    return b.each("constant", "add", value, None, numbers) if len(numbers) and numbers.any() else value


def transformed(b: Builder, value: Value, post: str) -> Value:
    """Scores after a post-transform of ONNX."""
    if post == "LOGISTIC":
        return b.each("unary", "logistic", value)
    if post == "PROBIT":
        return b.each("unary", "probit", value)
    if post in ("SOFTMAX", "SOFTMAX_ZERO"):
        return softmax(b, value, "not zeros" if post == "SOFTMAX_ZERO" else "all")
    return value


def _dtype(value: Value) -> str:
    """The type in which trees compare."""
    return "float64" if value.dtype == "float64" else "float32"


def _aggregated(b: Builder, e: Ensemble, value: Value, how: str) -> Value:
    if how not in ("SUM", "AVERAGE"):
        raise UnsupportedError(f"the {how} of trees")
    if how == "SUM":
        return value
    return b.each("constant", "divide", value, None, np.full(e.targets, len(e.roots)))


def _base(a: Attributes, dtype: str, targets: int) -> Array:
    """The number that is added for each target, or none."""
    base = _numbers(a, "base_values", dtype)
    if len(base) not in (0, targets):
        raise UnsupportedError("base values of another number than targets")
    return base


def _regressor(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.matrix(node.input[0])
    if value.dtype not in FLOATS:
        raise UnsupportedError(f"a regressor of {value.dtype}")
    dtype, targets = _dtype(value), int(a.get("n_targets", 1))
    e = _nodes_of(a, dtype, "target", targets)
    found = _aggregated(b, e, sums_of(b, value, e, dtype), a.get("aggregate_function", "SUM"))
    found = _finished(b, _plus(b, found, _base(a, dtype, targets)), a.get("post_transform", "NONE"))
    b.values[node.output[0]] = b.cast(found, "float32")


def _finished(b: Builder, value: Value, post: str) -> Value:
    """The post-transform. ONNX Runtime leaves out all but PROBIT for one target; so nobody knows what is meant."""
    if value.columns.size == 1 and post not in ("NONE", "PROBIT"):
        raise UnsupportedError(f"{post} of one target")
    return transformed(b, value, post)


def _tree_ensemble(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.matrix(node.input[0])
    if value.dtype not in FLOATS:
        raise UnsupportedError(f"trees of {value.dtype}")
    e = _tensors_of(a, value.dtype)
    found = _aggregated(b, e, sums_of(b, value, e, value.dtype), _AGGREGATES[a.get("aggregate_function", 1)])
    post = _POST[a.get("post_transform", 0)]
    if post in ("SOFTMAX", "LOGISTIC"):  # ONNX Runtime takes one for the other
        raise UnsupportedError(f"{post} of trees, which the standard and ONNX Runtime number in other ways")
    b.values[node.output[0]] = _finished(b, found, post)


def labels_of(b: Builder, a: Attributes) -> tuple[Array, str]:
    """The labels of classes, as they are in columns, and their type."""
    if "classlabels_strings" in a and len(a["classlabels_strings"]):
        return np.array([b.code(each) for each in a["classlabels_strings"]], np.int64), "string"
    labels = a.get("classlabels_int64s", a.get("classlabels_ints", np.zeros(0, np.int64)))
    return np.asarray(labels), "int64"


def labelled(b: Builder, place: Value, labels: Array, dtype: str) -> Value:
    """The labels at these places."""
    if dtype == "int64" and np.array_equal(labels, np.arange(len(labels))):
        return place
    return mapped(b, place, np.arange(len(labels)), labels, labels[0], labels[0], dtype)


def _classifier(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.matrix(node.input[0])
    if value.dtype not in (*FLOATS, "int64", "int32"):
        raise UnsupportedError(f"a classifier of {value.dtype}")
    dtype = _dtype(value)
    labels, of = labels_of(b, a)
    classes, post = len(labels), a.get("post_transform", "NONE")
    e = _nodes_of(a, dtype, "class", classes)
    present = _present(e)
    base = _numbers(a, "base_values", dtype)
    scores = sums_of(b, value, e, dtype)
    if classes > 2:
        scores = _plus(b, scores, _base(a, dtype, classes))
        if not present.all() and not len(base):
            raise UnsupportedError("classes without weights")
        place, found = largest(b, scores), transformed(b, scores, post)
    elif classes == 2 and not present[1] and len(base) < 2:
        place, found = _binary(b, _plus(b, Value(scores.columns[:1], dtype), base), a, e, post)
    elif classes == 2 and present.all() and not len(base):
        # ONNX Runtime gives 1 or 0 here, whatever the labels are, if these are integers.
        above = b.each("constant", "greater", Value(scores.columns[1:], dtype), "int64", np.zeros(1))
        place, found = Value(above.columns.reshape(()), "int64"), transformed(b, scores, post)
        labels = labels if of == "string" else np.arange(2)
    else:
        raise UnsupportedError("an unusual classifier of two classes")
    b.values[node.output[0]] = labelled(b, place, labels, of)
    if len(node.output) > 1 and node.output[1]:
        b.values[node.output[1]] = b.cast(found, "float32")


def _present(e: Ensemble) -> Array:
    """Which targets get a weight from every row. Raises UnsupportedError if that depends on the row."""
    order = e.order
    leaves = order.leaves[e.roots]
    reached = order.tree[e.weight_node] >= 0
    key = np.unique(np.stack([e.weight_node[reached], e.weight_target[reached]]), axis=1)
    tree = order.tree[key[0]]
    counts = np.zeros((len(e.roots), e.targets), np.int64)
    np.add.at(counts, (tree, key[1]), 1)
    always = (counts == leaves[:, None]).any(0)
    if (always != (counts > 0).any(0)).any():
        raise UnsupportedError("classes with weights in some leaves only")
    return np.asarray(always)


def _binary(b: Builder, score: Value, a: Attributes, e: Ensemble, post: str) -> tuple[Value, Value]:
    """The place of the label, and two scores, of one score of two classes."""
    positive = not (e.weight < 0).any()
    if post not in ("NONE", "LOGISTIC"):
        raise UnsupportedError(f"{post} of one score of two classes")
    above = b.each("constant", "greater", score, "int64", np.array([0.5 if positive else 0.0]))
    place = Value(above.columns.reshape(()), "int64")
    other = b.each("unary", "negative", score)
    if positive and post == "NONE":
        other = b.each("constant", "add", other, None, np.ones(1))
    return place, transformed(b, Value(np.concatenate([other.columns, score.columns]), score.dtype), post)


TREES: dict[tuple[str, str], Operator] = {
    ("ml", "TreeEnsemble"): _tree_ensemble,
    ("ml", "TreeEnsembleRegressor"): _regressor,
    ("ml", "TreeEnsembleClassifier"): _classifier,
}
