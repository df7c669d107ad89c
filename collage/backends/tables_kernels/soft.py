"""Soft trees: two layers of tanh for each of many trees, found among the operators of an ONNX graph, as one step.

The first layer adds rows of tables, which codes choose, and a product of columns. The second one is a small product for
each tree; its results are weighted and added up. `collage.windtunnel` writes such graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.tables_kernels.build import Array, Builder, Operator, Value
from collage.frontend import messages
from collage.frontend.messages import GraphProto, ModelProto, NodeProto
from collage.native.table import Column, soft_trees_struct, soft_trees_work

_DOMAIN, _TYPE = "collage", "SoftTrees"
_LANES = 16
_LARGEST_TABLE = 1 << 26
"""Bytes up to which the product of a table and weights becomes a table itself."""


class _OtherError(Exception):
    """The operators are no soft trees."""


@dataclass
class _Graph:
    """The constants of a graph, the nodes by their outputs, and how often each value is read."""

    constants: dict[str, Array]
    makers: dict[str, NodeProto]
    readers: dict[str, int]

    @classmethod
    def of(cls, graph: GraphProto) -> _Graph:
        readers: dict[str, int] = {}
        for name in [*(name for node in graph.node for name in node.input), *(each.name for each in graph.output)]:
            readers[name] = readers.get(name, 0) + 1
        constants = {each.name: messages.to_array(each) for each in graph.initializer}
        return cls(constants, {name: node for node in graph.node for name in node.output}, readers)

    def node(self, name: str, op_type: str) -> NodeProto:
        """The operator that makes a value for one reader."""
        node = self.makers.get(name)
        if node is None or node.op_type != op_type or node.domain or self.readers[name] != 1:
            raise _OtherError
        return node

    def split(self, node: NodeProto) -> tuple[str, Array]:
        """The operand of two that is no constant, and the constant in float32, which a product has on its right."""
        name, constant = sorted(node.input, key=lambda each: each in self.constants)
        numbers = self.constants.get(constant, np.zeros(0))
        if name in self.constants or numbers.dtype != np.float32:
            raise _OtherError
        if node.op_type == "MatMul" and node.input[1] != constant:
            raise _OtherError
        return name, numbers


def with_soft_trees(model: ModelProto) -> ModelProto | None:
    """The model with one operator for each network of soft trees; None if it has none."""
    graph = _Graph.of(model.graph)
    found = []
    for node in model.graph.node:
        if node.op_type == "ReduceSum":
            try:
                found.append(_matched(graph, node))
            except (_OtherError, ValueError, IndexError):
                continue
    if not found:
        return None
    inner = {name for match in found for name in match.inner}
    ends = {name: match.node for match in found for name in match.node.output}
    changed = messages.ModelProto()
    changed.CopyFrom(model)
    changed.graph.ClearField("node")
    for node in model.graph.node:
        if node.output[0] in ends:
            changed.graph.node.append(ends[node.output[0]])
        elif node.output[0] not in inner:
            changed.graph.node.append(node)
    for match in found:
        changed.graph.initializer.extend(messages.from_array(each, name) for name, each in match.made.items())
    return changed


@dataclass(frozen=True)
class _Match:
    node: NodeProto
    inner: set[str]
    """The values that nothing else reads."""
    made: dict[str, Array]


def _matched(graph: _Graph, end: NodeProto) -> _Match:
    """The network whose sums over trees the operator makes. Raises an error if there is none."""
    inner: list[str] = []

    def maker(name: str, op_type: str) -> NodeProto:
        node = graph.node(name, op_type)
        inner.append(name)
        return node

    axes = graph.constants.get(end.input[1]) if len(end.input) > 1 else None
    if axes is None or axes.tolist() != [0] or messages.attribute(end, "keepdims", 1):
        raise _OtherError
    name, added = graph.split(maker(end.input[0], "Add"))
    name, value = graph.split(maker(name, "MatMul"))  # [trees, leaves, targets]
    name, bend = graph.split(maker(maker(name, "Tanh").input[0], "Add"))
    name, path = graph.split(maker(name, "MatMul"))  # [trees, nodes, leaves]
    turned = maker(name, "Transpose")
    shaped = maker(turned.input[0], "Reshape")
    trees, nodes, leaves = path.shape
    targets = value.shape[2]
    shape = graph.constants[shaped.input[1]] if shaped.input[1] in graph.constants else np.zeros(0)
    if list(messages.attribute(turned, "perm", [])) != [1, 0, 2] or messages.attribute(shaped, "allowzero", 0):
        raise _OtherError
    if shape.tolist() not in ([0, trees, nodes], [-1, trees, nodes]) or value.shape != (trees, leaves, targets):
        raise _OtherError
    if bend.shape != (trees, 1, leaves) or added.shape != (trees, 1, targets):
        raise _OtherError
    terms = _Terms(graph, trees * nodes, inner)
    terms.take(maker(shaped.input[0], "Tanh").input[0])
    made = {
        "bias": terms.bias,
        "path": path,
        "bend": bend[:, 0],
        "value": value,
        "shift": (added[:, 0].astype(np.float64).sum(0) - value.astype(np.float64).sum((0, 1))).astype(np.float32),
    }
    made |= {f"weight{at}": each for at, each in enumerate(terms.weights)}
    made = {f"{end.output[0]}/{key}": each for key, each in made.items()}
    inputs = [*terms.numbers, *terms.codes, *terms.tables, *made]
    counts = {"numbers": len(terms.numbers), "codes": len(terms.codes), "picked": terms.picked}
    node = messages.node(_TYPE, inputs, [end.output[0]], _DOMAIN, **counts)
    return _Match(node, {*inner}, made)


class _Terms:
    """What is added up before the first tanh."""

    def __init__(self, graph: _Graph, width: int, inner: list[str]) -> None:
        self._graph, self._inner, self._width = graph, inner, width
        self.numbers: list[str] = []
        self.codes: list[str] = []
        self.tables: list[str] = []
        self.weights: list[Array] = []
        """For each of ``numbers`` [columns, nodes of all trees]. Columns that are missing at the end have no weight."""
        self.picked: list[int] = []
        """The ``numbers`` that a node has one column of."""
        self.bias = np.zeros(width, np.float32)

    def take(self, name: str) -> None:
        """Add the terms of a value."""
        constants = self._graph.constants
        if name in constants:
            self.bias = self.bias + np.broadcast_to(constants[name], (1, self._width))[0].astype(np.float32)
            return
        made = self._graph.makers.get(name)
        node = self._graph.node(name, made.op_type if made is not None else "")
        self._inner.append(name)
        if node.op_type in ("Sum", "Add"):
            for each in node.input:
                self.take(each)
        elif node.op_type == "Gather" and node.input[0] in constants and not messages.attribute(node, "axis", 0):
            if constants[node.input[0]].shape[1:] != (self._width,):
                raise _OtherError
            self.tables.append(node.input[0])
            self.codes.append(node.input[1])
        elif node.op_type in ("Gemm", "MatMul") and node.input[1] in constants and not node.attribute:
            self.numbers.append(node.input[0])
            self.weights.append(constants[node.input[1]].astype(np.float32))
            for each in node.input[2:]:
                self.take(each)
        elif node.op_type == "Sub" and node.input[1] in constants:
            self.take(node.input[0])
            self.bias = self.bias - np.broadcast_to(constants[node.input[1]], (1, self._width))[0]
        elif node.op_type == "Mul":
            self._take_columns(*self._graph.split(node))
        else:
            raise _OtherError

    def _take_columns(self, name: str, factor: Array) -> None:
        """Add columns that are chosen by a constant, each times its factor."""
        node = self._graph.node(name, "Gather")
        self._inner.append(name)
        which = self._graph.constants.get(node.input[1], np.zeros(0, np.int64))
        if messages.attribute(node, "axis", 0) != 1 or which.shape != (self._width,) or which.min(initial=0) < 0:
            raise _OtherError
        weight = np.zeros((which.max() + 1, self._width), np.float32)
        weight[which, np.arange(self._width)] = np.broadcast_to(factor, (1, self._width))[0]
        self.picked.append(len(self.numbers))
        self.numbers.append(node.input[0])
        self.weights.append(weight)


def _soft_trees(b: Builder, node: NodeProto, a: Mapping[str, Any]) -> None:
    """The step of the operator that `with_soft_trees` writes."""
    numbers, codes = (int(a.get(key, 0)) for key in ("numbers", "codes"))
    given, coded = node.input[:numbers], node.input[numbers : numbers + codes]
    tables = [b.constant(each) for each in node.input[numbers + codes : numbers + 2 * codes]]
    bias, path, bend, value, shift, *weights = (b.constant(each) for each in node.input[numbers + 2 * codes :])
    trees, nodes, leaves = path.shape
    columns: list[Column] = []
    for at, (name, weight) in enumerate(zip(given, weights, strict=True)):
        value_of = _floats(b, name)
        if at in a.get("picked", ()):  # infinity times 0 would be NaN at all other nodes
            value_of = _finite(b, replace(value_of, columns=value_of.columns[: len(weight)]))
        columns += b.columns(value_of, "float32")
        if len(value_of.columns) != len(weight):
            raise UnsupportedError("soft trees of other sizes than their weights")
    places = [c for name in coded for c in b.columns(_codes(b, name), "int64")]
    weight = np.concatenate([np.zeros((0, bias.size), np.float32), *weights])
    columns, weight, of_codes = _folded(b, columns, weight)
    places, tables = [*places, *of_codes], [*tables, *of_codes.values()]
    arrays = {
        "categories": np.array([len(each) for each in tables], np.int64),
        "weight": _filled(weight.reshape(len(weight), trees, nodes).transpose(1, 0, 2)),
        "bias": _filled(bias.reshape(trees, nodes)),
        "path": _filled(path),
        "bend": _filled(bend),
        "value": _filled(value.transpose(0, 2, 1)),
        "shift": shift,
    }
    counts = {"trees": trees, "nodes": nodes, "leaves": leaves, "targets": len(shift)}
    counts |= {"numbers": len(columns), "tables": len(tables)}
    made = b.program.new("float32", len(shift))
    struct = soft_trees_struct(counts, [_filled(each.reshape(-1, trees, nodes)) for each in tables], arrays)
    b.program.step("soft", [*places, *columns], made, ("float32", ""), [struct])
    pointers = -(-(len(places) + len(columns) + len(shift)) // 8) * 64
    b.program.scratch_bytes = max(b.program.scratch_bytes, pointers + soft_trees_work(struct))
    b.values[node.output[0]] = b.made(made, (len(shift),), "float32")


def _folded(b: Builder, columns: list[Column], weight: Array) -> tuple[list[Column], Array, dict[Column, Array]]:
    """The columns that no code chooses, with their weights, and by codes what all others add.

    A row of a table takes as long as a product with one or two columns.
    """
    codes: dict[Column, list[int]] = {}
    for at, column in enumerate(columns):
        if column in b.chosen:
            codes.setdefault(b.chosen[column][0], []).append(at)
    tables = {}
    for code, which in codes.items():
        numbers = np.stack([b.chosen[columns[at]][1] for at in which], 1)  # [categories, columns]
        if len(which) > 1 and len(numbers) * weight.shape[1] * weight.itemsize <= _LARGEST_TABLE:
            tables[code] = (numbers.astype(np.float64) @ weight[which]).astype(np.float32)
    rest = [
        at for at, column in enumerate(columns) if weight[at].any() and b.chosen.get(column, (None,))[0] not in tables
    ]
    return [columns[at] for at in rest], weight[rest], tables


def _floats(b: Builder, name: str) -> Value:
    found = b.matrix(name)
    if found.dtype != "float32":
        raise UnsupportedError(f"soft trees of {found.dtype}")
    return found


def _finite(b: Builder, value: Value) -> Value:
    """The largest numbers instead of infinities, but for columns that a code chooses."""
    which = [at for at, column in enumerate(value.columns) if column not in b.chosen]
    some = replace(value, columns=value.columns[which])
    most = np.full(len(which), np.finfo(np.float32).max, np.float32)
    for what, limit in (("minimum", most), ("maximum", -most)):
        some = b.each("constant", what, some, None, limit)
    columns = value.columns.copy()
    columns[which] = some.columns
    return replace(value, columns=columns)


def _codes(b: Builder, name: str) -> Value:
    found = b.value(name)
    if found.dtype != "int64" or found.columns.ndim:
        raise UnsupportedError("several codes of a row, or codes that are not int64")
    return found


def _filled(values: Array) -> Array:
    """The array, with zeros up to a multiple of 16 on its last axis."""
    rest = -values.shape[-1] % _LANES
    return np.ascontiguousarray(np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, rest)]), np.float32)


SOFT: dict[tuple[str, str], Operator] = {(_DOMAIN, _TYPE): _soft_trees}
