"""Ensembles of trees as networks: exact routes, and the two soft layers of the chapter (5.2.2), from one set of arrays.

Trees are padded to equal numbers of nodes and leaves. Inside, rows are the last dimension: [trees, nodes, rows].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from collage.errors import ModelError
from collage.frontend.trees.booster import ZERO, Booster, Categories, add_cleaned, add_sums
from collage.frontend.trees.ensemble import (
    EQ,
    GT,
    GTE,
    LEQ,
    LT,
    MEMBER,
    NEQ,
    Trees,
    check_trees,
    tree_of_nodes,
)
from collage.windtunnel.modules.part import Part, Tensor, array
from collage.windtunnel.writer import LARGEST_TABLE, Hot, Plain, Value, Writer, spans

Level = Literal["L1", "L2", "L3", "L4"]
"""The parameters to learn: values of leaves; and thresholds; and weights of features; and the layer of the leaves."""

MOST_CATEGORIES = 1 << 20
_FAR = 1e3
"""Soft trees take numbers as at most this many standard deviations from the mean, so that infinities stay finite."""
_SURE = 1e4
"""The number before tanh of a missing value."""


class Forest(Part):
    """Trees over [rows, features]: the sums of their leaves, [rows, targets], or which leaves are reached.

    Hard, a row takes one path through each tree. Soft, a node is tanh((e x - theta) / tau), +1 for the child of larger
    numbers, and a leaf tanh((sum of the nodes on its path - their number + 1) / tau_leaf), which counts for
    (1 + leaf) / 2.
    ``e`` and ``theta`` are in units of the spread of the node's own input. Soft trees compute in float32, but for the
    step before: numbers lose the columns' means in float64.
    """

    takes_missing = takes_infinite = settles = True
    exact = frozenset(("split", "centre", "scale"))

    @classmethod
    def of(cls, booster: Booster, output: Literal["scores", "leaves"] = "scores") -> Forest:
        """Raises ModelError for trees that are none: a cycle, or a child out of range."""
        trees = booster.trees
        check_trees(trees, booster.n_features, f"the model of {booster.library}")
        places = _Places(trees)
        large = trees.features[:0].astype(np.bool_) if not len(trees.features) else np.isin(trees.modes, (GT, GTE, NEQ))
        left, right = (places.children(np.where(large == (side == "left"), trees.false, trees.true)) for side in _SIDES)
        split = trees.splits.copy()
        strict = np.isin(trees.modes, (LT, GTE))
        split[strict] = np.nextafter(split[strict], split.dtype.type(-np.inf))
        factor = booster.scale / booster.divisor * booster.slope
        values = np.zeros((trees.n_targets, len(trees.roots) * places.leaves))
        owned = np.zeros(values.shape, np.bool_)
        if trees.leaves.shape[1] == 1:
            values[trees.targets, places.of_leaves] = trees.leaves[:, 0] * factor
            owned[trees.targets, places.of_leaves] = True
        else:
            values[:, places.of_leaves] = trees.leaves.T * factor
            owned[:, places.of_leaves] = True
        bias = np.zeros(trees.n_targets) + np.asarray(booster.bias or 0.0) * booster.slope
        path, bend = places.paths(left, right)
        constants = {
            "root": places.children(trees.roots),
            "feature": places.node_array(trees.features),
            "split": places.node_array(split),
            "left": places.node_array(left, fill=-1),
            "right": places.node_array(right, fill=-1),
            "missing_right": places.node_array(np.where(large, trees.tracks, ~trees.tracks)),
            "path": path,
            "bend": bend,
            "owned": owned,
            "of_leaves": places.of_leaves,
        } | _sets(booster, places)
        return cls(
            {"values": values, "bias": bias},
            constants,
            width=len(places.of_leaves) if output == "leaves" else trees.n_targets,
            output=output,
            mode="hard",
            level="L1",
            features=booster.n_features,
            depth=places.depth,
            precision=str(booster.dtype),
            missing=booster.missing,
            zeros=list(booster.near_zero_is_missing),
            categories=list(booster.categories.features),
            toward_zero=booster.categories.toward_zero,
            tau=1.0,
            tau_leaf=1.0,
            dropout=0.0,
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.settings["mode"] == "soft":
            return self._soft(x).double()
        leaves = self.route(x)  # [rows, trees]
        if self.settings["output"] == "leaves":
            reached = torch.zeros((len(x), self.values.shape[1]), dtype=x.dtype, device=x.device)
            return reached.scatter_(1, leaves, 1.0)[:, self.of_leaves]
        return functional.embedding_bag(leaves, (self.values * self.owned).t(), mode="sum") + self.bias

    def clean(self, x: Tensor) -> Tensor:
        """Numbers as the library sees them: what means missing is NaN, categories are whole."""
        about = self.settings
        x = x.to(torch.float32 if about["precision"] == "float32" else torch.float64)
        if about["missing"] is not None:
            x = torch.where(x == about["missing"], torch.nan, x)
        if about["zeros"]:
            x = x.clone()
            some = x[:, about["zeros"]]
            x[:, about["zeros"]] = torch.where(some.abs() <= ZERO, torch.nan, some)
        if about["categories"]:
            x = x.clone()
            some = x[:, about["categories"]]
            x[:, about["categories"]] = some.trunc() if about["toward_zero"] else some.floor()
        return x

    @torch.no_grad()
    def route(self, x: Tensor) -> Tensor:
        """The leaf of each row in each tree, [rows, trees], numbered over the padded trees."""
        x = self.clean(x)
        missing = bool(torch.isnan(x).any())
        flat, rows = x.reshape(-1), torch.arange(len(x))[:, None] * x.shape[1]
        at = self.root.expand(len(x), -1)
        for _ in range(self.settings["depth"]):
            node = at.clamp_min(0)
            number = flat[rows + self.feature[node]]
            right = number > self.split[node]
            if missing:
                right |= torch.isnan(number) & self.missing_right[node]
            if len(self.set_of_node):
                right = torch.where(self.set_of_node[node] >= 0, self._member(node, number), right)
            at = torch.where(at < 0, at, torch.where(right, self.right[node], self.left[node]))
        return ~at

    def _member(self, node: Tensor, number: Tensor) -> Tensor:
        """Whether numbers of categories go right at nodes that have a set."""
        last = self.goes_right.shape[1] - 1
        known = (number >= 0) & (number < last) & (number == number.floor())
        code = torch.where(known, number, float(last)).long()
        right = self.goes_right[self.set_of_node[node].clamp_min(0), code]
        return torch.where(torch.isnan(number), self.missing_right[node], right)

    def _soft(self, x: Tensor) -> Tensor:
        about, (trees, leaves, nodes) = self.settings, self.path.shape
        x = self._prepared(x)
        u = ((x - self.centre) / self.scale).to(self.theta.dtype).t().contiguous()  # [features, rows]
        absent = torch.isnan(u)
        missing = bool(absent.any())
        u = torch.where(absent, 0.0, u) if missing else u
        u = u.clamp(-_FAR, _FAR)
        ratio = 1 / about["tau"]
        if about["level"] in ("L1", "L2"):
            z = (u[self.feature] * self.weight[:, None] - self.theta[:, None]) * ratio
        else:
            z = torch.addmm(self.theta[:, None], self.weight, u, beta=-ratio, alpha=ratio)
        if missing:
            sure = torch.where(self.missing_right, _SURE, -_SURE).to(z.dtype)[:, None]
            z = torch.where(absent[self.feature], sure, z)
        if len(self.set_of_node):
            z = z.index_copy(0, self.set_nodes, self._decided(x))
        node = torch.tanh_(z)
        if about["dropout"] and self.training:
            node = functional.dropout(node, about["dropout"])
        bend = self.bend[:, :, None]
        ratio = 1 / about["tau_leaf"]
        leaf = torch.tanh_(torch.baddbmm(bend, self.path, node.view(trees, nodes, len(x)), beta=ratio, alpha=ratio))
        if about["output"] == "leaves":
            return (0.5 + 0.5 * leaf.view(trees * leaves, len(x))[self.of_leaves]).t()
        # Tree by tree, since the sum of all leaves, most of which are -1, would lose digits.
        values = (self.values * self.owned).view(len(self.values), trees, -1).transpose(0, 1)
        sums = torch.baddbmm(0.5 * values.sum(2, keepdim=True), values, leaf, alpha=0.5)
        return sums.sum(0).t().double() + self.bias

    def _prepared(self, x: Tensor) -> Tensor:
        about = self.settings
        plain = about["missing"] is None and not about["zeros"] and not about["categories"]
        return x if plain else self.clean(x).to(x.dtype)

    def _decided(self, x: Tensor) -> Tensor:
        """+-``_SURE`` for the nodes that have sets: they stay hard."""
        with torch.no_grad():
            number = x[:, self.feature[self.set_nodes]]
            right = self._member(self.set_nodes.expand(len(x), -1), number)
            return torch.where(right, _SURE, -_SURE).to(self.theta.dtype).t().contiguous()

    @torch.no_grad()
    def soften(self, x: Tensor, level: Level, tau: float, tau_leaf: float) -> None:
        """Start the soft trees from the hard ones.

        ``x`` are training rows. They give thresholds midway between neighbouring numbers, the spread of the input of
        each node over the rows that reach it, which is the unit of ``tau``, and the mean of each tree, which moves to
        the bias.
        """
        x = self.clean(x)
        finite = torch.where(torch.isfinite(x), x, torch.nan).double().numpy()
        centre, scale = _mean_and_spread(finite)
        scale[self.settings["categories"]] = np.inf  # numbers of categories mean nothing in a sum
        feature, split = self.feature.numpy(), self.split.numpy()
        inner = self.left.numpy() != self.right.numpy()  # padding has no children
        threshold = split.astype(np.float64)
        for each in np.unique(feature[inner]):
            chosen = inner & (feature == each)
            threshold[chosen] = _midway(finite[:, each], threshold[chosen])
        spread = self._spreads(x, scale)
        weight = np.where(inner, scale[feature] / spread, 0.0)
        # Some libraries write limits of float32 for thresholds that only missing values pass.
        theta = np.where(inner, ((threshold - centre[feature]) / spread).clip(-_FAR, _FAR), 0.0)
        if len(self.set_of_node):
            weight[self.set_nodes.numpy()] = theta[self.set_nodes.numpy()] = 0.0
        self._centre_values(x)
        self.settings |= {"level": level, "mode": "hard" if level == "L1" else "soft", "tau": tau, "tau_leaf": tau_leaf}
        self.set_constant("centre", centre)
        self.set_constant("scale", scale)
        path, bend = self.path, self.bend
        for name in ("weight", "theta", "path", "bend"):
            delattr(self, name) if hasattr(self, name) else None
        (self.set_parameter if level != "L1" else self.set_constant)("theta", theta)
        if level in ("L3", "L4"):
            dense = np.zeros((len(weight), self.settings["features"]))
            dense[np.arange(len(weight)), feature] = weight
            self.set_parameter("weight", dense)
        else:
            self.set_constant("weight", weight)
        for name, value in (("path", path), ("bend", bend)):
            (self.set_parameter if level == "L4" else self.set_constant)(name, value)
        if level != "L1":
            self.cast(torch.float32)

    def _spreads(self, x: Tensor, scale: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each node the standard deviation of its input over the rows that reach it; of all rows if it is none."""
        many = len(self.feature)
        count, total, squares = np.zeros(many), np.zeros(many), np.zeros(many)
        for start in range(0, len(x), 4096):
            rows = x[start : start + 4096]
            on_path = self._nodes_reached(rows)
            for row, node in on_path:
                number = rows[row, self.feature[node]].double().numpy()
                at = node.numpy()[np.isfinite(number)]
                number = number[np.isfinite(number)]
                count += np.bincount(at, minlength=many)
                total += np.bincount(at, number, many)
                squares += np.bincount(at, number * number, many)
        known = np.maximum(count, 1)
        variance = squares / known - (total / known) ** 2
        spread = np.sqrt(np.maximum(variance, 0))
        usual = np.where(np.isfinite(scale), scale, 1.0)[self.feature.numpy()]
        return np.where(spread > 1e-3 * usual, spread, usual)

    def _nodes_reached(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Pairs of rows and nodes, level by level. ``x`` is clean."""
        found = []
        leaves = self.route(x)
        parent = self._parents()
        at = parent[1][leaves]
        while bool((at >= 0).any()):
            row, tree = torch.nonzero(at >= 0, as_tuple=True)
            node = at[row, tree]
            found.append((row, node))
            at = torch.where(at >= 0, parent[0][at.clamp_min(0)], at)
        return found

    def _parents(self) -> tuple[Tensor, Tensor]:
        """The node above each node, and above each leaf; -1 for roots."""
        of_node, of_leaf = torch.full_like(self.feature, -1), torch.full((self.values.shape[1],), -1)
        nodes = torch.nonzero(self.left != self.right)[:, 0]
        for children in (self.left[nodes], self.right[nodes]):
            of_node[children[children >= 0]] = nodes[children >= 0]
            of_leaf[~children[children < 0]] = nodes[children < 0]
        return of_node, of_leaf

    def _centre_values(self, x: Tensor) -> None:
        """Move the mean of each tree over rows, for each target, to the bias: the sums stay what they are."""
        if self.settings["output"] == "leaves":
            return
        trees, targets = self.path.shape[0], len(self.values)
        count = torch.zeros(self.values.shape[1], dtype=torch.float64)
        for start in range(0, len(x), 4096):
            count += torch.bincount(self.route(x[start : start + 4096]).reshape(-1), minlength=len(count))
        values = self.values.data.double()
        mean = (values * count).view(targets, trees, -1).sum(2) / len(x)
        # A tree of one target has nothing of the others to move; one of all targets has something of each.
        moved = mean[:, :, None].expand(-1, -1, self.path.shape[1]).reshape(values.shape) * self.owned
        self.values.data = (values - moved).to(self.values.dtype)
        self.bias.data = (self.bias.data.double() + mean.sum(1)).to(self.bias.dtype)

    def randomise(self, generator: Any) -> None:
        """Draw all that the level learns. The paths stay, but at L4."""

        def drawn(like: Tensor, spread: float) -> Tensor:
            return torch.randn(like.shape, generator=generator, dtype=like.dtype) * spread

        self.values.data = drawn(self.values, float(self.values.data[self.owned].std()))
        self.values.data *= self.owned
        if self.settings["level"] == "L1":
            return
        used = (self.left != self.right).to(self.theta.dtype)
        if self.weight.ndim == 2:
            self.weight.data = drawn(self.weight, self.settings["tau"] / self.weight.shape[1] ** 0.5) * used[:, None]
            self.theta.data = drawn(self.theta, self.settings["tau"]) * used
        else:  # in units of the spread of a node's input
            self.theta.data = drawn(self.theta, 1.0) * self.weight * used
        if self.settings["level"] == "L4":
            real = self.bend > -_FAR
            self.path.data = drawn(self.path, self.settings["tau_leaf"] / self.path.shape[2] ** 0.5)
            self.bend.data = torch.where(real, 0.0, self.bend)

    def export(self, to: Writer, *inputs: Value) -> Value:
        value = self._export_zeros(to, inputs[0])
        booster = replace(self.hard_booster(), near_zero_is_missing=())
        if self.settings["mode"] == "hard":
            return self._export_hard(to, booster, to.dense(value))
        return self._export_soft(to, booster, value)

    def _export_zeros(self, to: Writer, value: Value) -> Value:
        """NaN for zeros that mean missing. In the tables of encoders that costs nothing."""
        limits = np.full(self.settings["features"], -1.0)
        limits[self.settings["zeros"]] = ZERO
        found: list[Plain | Hot] = []
        for each, columns in spans(value):
            limit = limits[columns]
            if isinstance(each, Hot):
                found.append(Hot(each.code, np.where(np.abs(each.table) <= limit, np.nan, each.table)))
            elif (limit > 0).any():
                zero = to.op("LessOrEqual", to.op("Abs", each.name), to.number(limit))
                found.append(Plain(to.op("Where", zero, to.number(np.nan), each.name), each.width, True))
            else:
                found.append(each)
        return tuple(found)

    def hard_booster(self) -> Booster:
        """The trees as they take exact routes, with the values that were learnt."""
        about, exact = self.settings, self.split.numpy().dtype
        nodes = np.flatnonzero(array(self.left != self.right))
        place_of_node = np.full(len(self.left), 0)
        place_of_node[nodes] = np.arange(len(nodes))
        of_leaves = array(self.of_leaves)
        place_of_leaf = np.zeros(self.values.shape[1], np.int64)
        place_of_leaf[of_leaves] = np.arange(len(of_leaves))

        def children(of: NDArray[np.int64]) -> NDArray[np.int64]:
            found: NDArray[np.int64] = np.where(of >= 0, place_of_node[of.clip(0)], ~place_of_leaf[(~of).clip(0)])
            return found

        modes, splits = np.full(len(nodes), LEQ, np.uint8), array(self.split)[nodes]
        sets = []
        for at in np.flatnonzero(np.isin(nodes, array(self.set_nodes))).tolist():
            left = np.flatnonzero(~array(self.goes_right)[self.set_of_node[nodes[at]]])
            modes[at], splits[at] = (MEMBER, -1) if len(left) > 1 else (EQ, left[0] if len(left) else -1)
            sets += [left.astype(exact)] if len(left) > 1 else []
        values, owned = array(self.values)[:, of_leaves], array(self.owned)[:, of_leaves]
        targets, n_targets, bias = np.zeros(len(of_leaves), np.int64), len(values), tuple(array(self.bias).tolist())
        if about["output"] == "leaves":
            values, targets, n_targets, bias = np.ones((1, len(of_leaves))), np.arange(len(of_leaves)), self.width, ()
        elif (owned.sum(0) == 1).all():
            targets = owned.argmax(0)
            values = values[targets, np.arange(len(of_leaves))][None]
        trees = Trees(
            roots=children(array(self.root)),
            features=array(self.feature)[nodes],
            modes=modes,
            splits=splits.astype(exact),
            tracks=~array(self.missing_right)[nodes],
            true=children(array(self.left)[nodes]),
            false=children(array(self.right)[nodes]),
            leaves=values.T.astype(exact),
            targets=targets,
            n_targets=n_targets,
            sets=tuple(sets),
        )
        return Booster(
            library="collage",
            names=(),
            n_features=about["features"],
            dtype=np.dtype(about["precision"]),
            trees=trees,
            missing=about["missing"],
            near_zero_is_missing=tuple(about["zeros"]),
            categories=Categories(tuple(about["categories"]), about["toward_zero"]),
            bias=bias,
        )

    def _export_hard(self, to: Writer, booster: Booster, x: str) -> Value:
        sums, _ = add_sums(to, booster, to.cast(x, booster.dtype))
        return to.plain(to.cast(sums, to.dtype), self.width)

    def _export_soft(self, to: Writer, booster: Booster, value: Value) -> Value:
        about, (trees, leaves, nodes) = self.settings, self.path.shape
        if about["missing"] is not None or about["categories"]:
            cleaned = add_cleaned(to, booster, to.dense(value), to.dtype)
            value = to.plain(cleaned, about["features"], missing=True)
        centred = to.affine(value, array(self.scale), array(self.centre), divides=True)
        narrow = to.of(np.float32)
        u = narrow.bounded(narrow.converted(centred), _FAR)
        feature, weight, theta = array(self.feature), array(self.weight), array(self.theta) / about["tau"]
        if weight.ndim == 2:
            z = narrow.product(u.filled, weight.T / about["tau"], -theta)
        else:
            own = to.op("Gather", narrow.dense(u.filled), to.constant(feature), axis=1)
            z = to.op("Sub", to.op("Mul", own, narrow.number(weight / about["tau"])), narrow.number(theta))
        if u.absent:
            # Above all else that is added: a threshold may be at the limits of float32.
            sure = np.zeros((about["features"], len(feature)))
            sure[feature, np.arange(len(feature))] = np.where(array(self.missing_right), 1e8, -1e8)
            for each, columns in u.absent:
                z = to.op("Add", z, narrow.product((each,), sure[columns]))
        if len(self.set_nodes):
            z = to.op("Sum", z, *self._export_decided(to, narrow, to.dense(value)))
        node = to.op("Reshape", to.op("Tanh", z), to.constant([0, trees, nodes], np.int64))
        node = to.op("Transpose", node, perm=[1, 0, 2])
        path = array(self.path).transpose(0, 2, 1) / about["tau_leaf"]
        bend = array(self.bend)[:, None, :] / about["tau_leaf"]
        leaf = to.op("Tanh", to.op("Add", to.op("MatMul", node, narrow.number(path)), narrow.number(bend)))
        if about["output"] == "leaves":
            leaf = to.op("Reshape", to.op("Transpose", leaf, perm=[1, 0, 2]), to.constant([0, -1], np.int64))
            leaf = to.op("Gather", leaf, to.constant(array(self.of_leaves)), axis=1)
            half = np.full(self.width, 0.5)
            return to.converted(narrow.affine(to.plain(leaf, self.width), half, half))
        # [trees, leaves, targets]
        values = array(self.values * self.owned).reshape(-1, trees, leaves).transpose(1, 2, 0)
        of_trees = to.op("MatMul", leaf, narrow.number(0.5 * values))
        of_trees = to.op("Add", of_trees, narrow.number(0.5 * values.sum(1, keepdims=True)))
        sums = to.op("ReduceSum", of_trees, to.constant([0], np.int64), keepdims=0)
        return to.converted(to.plain(to.op("Add", sums, narrow.number(array(self.bias))), self.width))

    def _export_decided(self, to: Writer, narrow: Writer, x: str) -> list[str]:
        """+-``_SURE`` for nodes with sets, and 0 for all others: for each column of categories a table's row."""
        nodes, right = array(self.set_nodes), array(self.goes_right)
        last = right.shape[1] - 1  # the code of all others; that of NaN follows
        if (last + 2) * len(self.feature) * narrow.dtype.itemsize > LARGEST_TABLE:
            raise ModelError(f"soft trees that split at category {last} cannot be written as ONNX: fine-tune at L1.")
        found = []
        for column in np.unique(array(self.feature)[nodes]).tolist():
            some = nodes[array(self.feature)[nodes] == column]
            table = np.zeros((last + 2, len(self.feature)))
            sides = right[array(self.set_of_node)[some]].T
            table[:, some] = np.where(np.concatenate((sides, array(self.missing_right)[some][None])), _SURE, -_SURE)
            number = to.op("Squeeze", to.op("Gather", x, to.constant([column]), axis=1), to.constant([1], np.int64))
            known = to.op("And", to.op("GreaterOrEqual", number, to.number(0)), to.op("Less", number, to.number(last)))
            code = to.op("Where", known, number, to.number(last))
            code = to.op("Where", to.op("IsNaN", number), to.number(last + 1), code)
            found.append(to.op("Gather", narrow.number(table), to.cast(code, np.int64), axis=0))
        return found


_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


class _Places:
    """The places of nodes and leaves if each tree has the same number of them."""

    def __init__(self, trees: Trees) -> None:
        self.trees = trees
        of_node, of_leaf = tree_of_nodes(trees)
        self.tree_of_leaf = of_leaf
        n_nodes, n_leaves = (np.bincount(each, minlength=len(trees.roots)) for each in (of_node, of_leaf))
        self.nodes, self.leaves = max(1, int(n_nodes.max())), int(n_leaves.max())
        self.of_nodes = of_node * self.nodes + _ranks(of_node)
        self.of_leaves = of_leaf * self.leaves + _ranks(of_leaf)
        self.depth = 0

    def children(self, of: NDArray[np.int64]) -> NDArray[np.int64]:
        """Nodes, and ``~leaf`` for leaves, by their places."""
        found = np.empty(len(of), np.int64)
        inner = of >= 0
        found[inner], found[~inner] = self.of_nodes[of[inner]], ~self.of_leaves[~of[~inner]]
        return found

    def node_array(self, values: NDArray[Any], fill: float = 0) -> NDArray[Any]:
        found = np.full(len(self.trees.roots) * self.nodes, fill, values.dtype)
        found[self.of_nodes] = values
        return found

    def paths(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """For each leaf the side of each node on its path, [trees, leaves, nodes], and one less the length of it.

        ``left`` and ``right`` are children by their places. It also finds the depth.
        """
        trees = len(self.trees.roots)
        path = np.zeros((trees * self.leaves, self.nodes))
        bend = np.full(trees * self.leaves, -_SURE)
        above: dict[int, tuple[int, float]] = {}
        for at, *sides in zip(self.of_nodes.tolist(), left.tolist(), right.tolist(), strict=True):
            for child, sign in zip(sides, (-1.0, 1.0), strict=True):
                above[child] = (at, sign)
        for leaf in self.of_leaves.tolist():
            at, length = ~leaf, 0
            while at in above:
                at, sign = above[at]
                path[leaf, at % self.nodes] = sign
                length += 1
            bend[leaf] = 1 - length if length else _SURE
            self.depth = max(self.depth, length)
        return path.reshape(trees, self.leaves, self.nodes), bend.reshape(trees, self.leaves)


def _ranks(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each entry among those with its owner, in order."""
    order = np.argsort(owners, kind="stable")
    firsts = np.searchsorted(owners[order], owners[order])
    ranks = np.empty(len(owners), np.int64)
    ranks[order] = np.arange(len(owners)) - firsts
    return ranks


def _sets(booster: Booster, places: _Places) -> dict[str, NDArray[Any]]:
    """The nodes that compare with sets of categories, and for each set which categories go right."""
    trees = booster.trees
    nodes = np.flatnonzero(np.isin(trees.modes, (EQ, NEQ, MEMBER)))
    given = iter(trees.sets)
    members = [next(given) if trees.modes[node] == MEMBER else trees.splits[node : node + 1] for node in nodes]
    whole = [each[(each >= 0) & (each == np.floor(each))].astype(np.int64) for each in members]
    most = max((int(each.max()) for each in whole if len(each)), default=-1)
    if most >= MOST_CATEGORIES:
        raise ModelError(
            f"the model of {booster.library} splits at category {most}; WindTunnel takes {MOST_CATEGORIES:,}."
        )
    goes_right = np.ones((len(nodes), most + 2), np.bool_)
    for row, each in zip(goes_right, whole, strict=True):
        row[each] = False
    # The true child is on the left, but for NEQ.
    set_of_node = np.full(len(trees.roots) * places.nodes if len(nodes) else 0, -1, np.int64)
    if len(nodes):
        set_of_node[places.of_nodes[nodes]] = np.arange(len(nodes))
    return {"set_nodes": places.of_nodes[nodes], "set_of_node": set_of_node, "goes_right": goes_right}


def _mean_and_spread(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each column, without NaN; a spread of 1 for columns that do not vary."""
    known = np.isfinite(x)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, x, 0).sum(0) / count
    spread = np.sqrt(np.where(known, (x - mean) ** 2, 0).sum(0) / count)
    return mean, np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1e-300), spread, 1.0)


def _midway(numbers: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Thresholds midway between the numbers beside them; those outside of all numbers stay."""
    numbers = np.unique(numbers[np.isfinite(numbers)])
    if not len(numbers):
        return thresholds
    above = np.searchsorted(numbers, thresholds, side="right")
    inside = (above > 0) & (above < len(numbers))
    low, high = numbers[np.maximum(above - 1, 0)], numbers[np.minimum(above, len(numbers) - 1)]
    return np.where(inside, low + (high - low) / 2, thresholds)
