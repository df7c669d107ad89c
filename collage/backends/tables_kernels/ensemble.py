"""Ensembles of trees in one normal form, whatever they were read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from collage.backends.base import UnsupportedError

Array: TypeAlias = "npt.NDArray[Any]"

LEAF, ABOVE, MEMBER = range(3)
"""What a node asks of its feature: nothing, whether it is above the threshold, or whether it is in a set."""


@dataclass(frozen=True)
class Ensemble:
    """Nodes of all trees, which are numbered together.

    At a node of kind ABOVE a row goes right if its feature is above ``threshold``, at one of kind MEMBER if it is in
    ``sets[members]``, and else left. NaN goes right where ``nan_right``. ``left``, ``right``: [node], numbers of nodes.
    A leaf may have several weights: number ``weight_node`` has ``weight`` for target ``weight_target``.
    """

    kind: Array
    feature: Array
    threshold: Array
    nan_right: Array
    left: Array
    right: Array
    members: Array
    sets: Sequence[Array]
    roots: Array
    targets: int
    weight_node: Array
    weight_target: Array
    weight: Array

    @cached_property
    def order(self) -> Order:
        """The nodes in order. Raises UnsupportedError for what are no trees."""
        return _ordered(self)

    @property
    def features(self) -> int:
        """The number of columns that the trees need."""
        inner = self.kind != LEAF
        return int(self.feature[inner].max(initial=-1)) + 1


@dataclass(frozen=True)
class Order:
    """Where nodes are in their trees. Of nodes that no root leads to, ``tree`` is -1.

    ``pre``: the number of the node among its tree's inner nodes, in pre-order. ``first``: the number of the first leaf
    below it. ``leaves``: [node], the number of leaves below it. ``depth``: [tree], the most nodes on the way to a leaf.
    """

    tree: Array
    pre: Array
    first: Array
    leaves: Array
    depth: Array


def _ordered(e: Ensemble) -> Order:
    count, trees = len(e.kind), len(e.roots)
    if not trees:
        raise UnsupportedError("there are no trees")
    tree = np.full(count, -1, np.int64)
    depth = np.zeros(trees, np.int64)
    levels: list[Array] = []
    frontier, of = e.roots.astype(np.int64), np.arange(trees)
    level = 0
    while frontier.size:
        _check_nodes(frontier, count)
        if (tree[frontier] >= 0).any() or len(np.unique(frontier)) < len(frontier):
            raise UnsupportedError("a node of a tree has two parents, or is below itself")
        tree[frontier] = of
        inner = e.kind[frontier] != LEAF
        nodes, of = frontier[inner], of[inner]
        level += 1
        depth[of] = level
        levels.append(nodes)
        frontier, of = np.concatenate([e.left[nodes], e.right[nodes]]), np.concatenate([of, of])
    leaves = np.ones(count, np.int64)
    for nodes in reversed(levels):
        leaves[nodes] = leaves[e.left[nodes]] + leaves[e.right[nodes]]
    pre, first = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for nodes in levels:
        left, right = e.left[nodes], e.right[nodes]
        pre[left], first[left] = pre[nodes] + 1, first[nodes]
        pre[right], first[right] = pre[nodes] + leaves[left], first[nodes] + leaves[left]
    return Order(tree, pre, first, leaves, depth)


def _check_nodes(nodes: Array, count: int) -> None:
    if nodes.size and not 0 <= nodes.min() <= nodes.max() < count:
        raise UnsupportedError("a node of a tree has a child that is not there")


def rounded_down(numbers: Array) -> Array:
    """The next lower numbers of float32."""
    with np.errstate(over="ignore"):
        found = numbers.astype(np.float32)
        return np.where(found > numbers, np.nextafter(found, np.float32(-np.inf)), found)


def narrowed(e: Ensemble) -> Ensemble:
    """The ensemble for numbers of float32: they are above a threshold if they are above the next lower one."""
    sets = [numbers[numbers.astype(np.float32) == numbers].astype(np.float32) for numbers in e.sets]
    return replace(e, threshold=rounded_down(e.threshold), sets=sets)


_MIRRORED = ("BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_MEMBER")
"""Modes whose true child becomes the right one."""
_STRICT = ("BRANCH_LT", "BRANCH_GTE")
"""Modes whose threshold is the number before it: x < t is x <= the number before t."""


def from_branches(
    *,
    modes: Array,
    feature: Array,
    threshold: Array,
    true: Array,
    false: Array,
    nan_true: Array,
    roots: Array,
    targets: int,
    weights: tuple[Array, Array, Array],
    sets: Mapping[int, Array] | None = None,
) -> Ensemble:
    """The ensemble of ONNX's nodes. ``modes``: [node], names of comparisons; "LEAF" for a leaf.

    ``sets`` has the numbers of each node whose mode is BRANCH_MEMBER. ``weights`` are the nodes, targets and weights of
    leaves. Raises UnsupportedError for modes that ONNX does not have.
    """
    leaf = modes == "LEAF"
    valid = ("LEAF", "BRANCH_LEQ", "BRANCH_NEQ", *_MIRRORED, *_STRICT)
    if unknown := sorted({*np.unique(modes)} - {*valid}):
        raise UnsupportedError(f"nodes of the modes {', '.join(map(str, unknown))}")
    if np.isnan(threshold[~leaf & (modes != "BRANCH_MEMBER")]).any():
        raise UnsupportedError("a threshold is NaN")
    kind = np.where(leaf, LEAF, ABOVE)
    kind[np.isin(modes, ("BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"))] = MEMBER
    strict = np.isin(modes, _STRICT)
    moved = threshold.copy()
    moved[strict] = np.nextafter(threshold[strict], threshold.dtype.type(-np.inf))
    never = strict & np.isneginf(threshold)  # nothing is below minus infinity: in no set, and so on the right side
    mirrored = np.isin(modes, _MIRRORED)
    left, right = np.where(mirrored, false, true), np.where(mirrored, true, false)
    nan_right = np.where(mirrored, nan_true, ~nan_true & (modes != "BRANCH_NEQ"))  # NaN is not equal to anything
    kind[never] = MEMBER
    left[never], right[never] = right[never], left[never]
    nan_right[never] = ~nan_right[never]
    kind[(kind == ABOVE) & np.isposinf(moved)] = MEMBER  # nothing is above infinity, but NaN may go right
    members, found = np.zeros(len(kind), np.int64), [np.zeros(0, threshold.dtype)]
    known: dict[bytes, int] = {found[0].tobytes(): 0}
    for node in np.flatnonzero(np.isin(modes, ("BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"))).tolist():
        numbers = threshold[node : node + 1] if sets is None or node not in sets else sets[node]
        numbers = np.unique(numbers[~np.isnan(numbers)] + threshold.dtype.type(0))  # one zero
        members[node] = known.setdefault(numbers.tobytes(), len(found))
        if members[node] == len(found):
            found.append(numbers)
    return Ensemble(kind, feature, moved, nan_right, left, right, members, tuple(found), roots, targets, *weights)
