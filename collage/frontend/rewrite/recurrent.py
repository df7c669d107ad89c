"""Recurrent operators over one step are replaced by a product and the functions of their gates.

A model that hears or reads a stream runs its LSTM on one step at a time. Engines run that operator as they run long
sequences, and nothing else has it. Written out, it is one product with a constant matrix, which all libraries have, in
reduced precisions, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage.frontend.read.scopes import STANDARD, all_graphs, all_nodes, integer, opset_of, set_all
from collage.frontend.read.shapes import infer_types
from collage.frontend.read.weights import array_of
from collage.frontend.rewrite.value_types import Types
from collage.graph.dataflow import Array

RECURRENT: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
"""The operators, and the default activations of a direction."""

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_LEAST_OPSET = 10
"""From here on a slice has its bounds as inputs."""
_DIRECTIONS = {b"forward": 1, b"reverse": 1, b"bidirectional": 2}
_OF_BATCHES = (0, 5, 6)
"""Inputs, by position, that have batches: data, the state and an LSTM's cell."""
_KNOWN = frozenset({"hidden_size", "direction", "linear_before_reset", "layout", "input_forget", "activations"})


def batches_second(model: onnx.ModelProto) -> None:
    """Let recurrent operators whose data has the batch first have it second, between transposes, in place.

    ONNX Runtime runs no others. Bodies of operators, and functions, are changed, too.
    """
    inner_first = reversed([*all_graphs(model.graph)])
    for each in (*inner_first, *model.functions):
        nodes = [new for node in each.node for new in _second(node)]
        if len(nodes) > len(each.node):
            set_all(each.node, nodes)


def _second(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The node, or what computes the same with the batch second."""
    if node.op_type not in RECURRENT or node.domain not in STANDARD:
        return [node]
    if not integer(node, "layout"):
        return [node]
    found = onnx.NodeProto()
    found.CopyFrom(node)
    set_all(found.attribute, [each for each in node.attribute if each.name != "layout"])
    prefix = node.name or next(filter(None, node.output))
    before, after = [], []
    for at, name in enumerate(node.input):
        if name and at in _OF_BATCHES:
            found.input[at] = f"{prefix}/{at}/second"
            before.append(_transposed(name, found.input[at], (1, 0, 2)))
    for at, name in enumerate(node.output):
        if name:
            found.output[at] = f"{name}/second"
            after.append(_transposed(found.output[at], name, (1, 0, 2) if at else (2, 0, 1, 3)))
    return [*before, found, *after]


def _transposed(source: str, target: str, order: Sequence[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [target], f"{target}/transpose", perm=order)


def steps_spelt_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without recurrent operators over one step whose weights are constants; itself if it has none.

    Operators with peepholes, lengths of sequences, clipping, a layout or activations of other than the default kind
    stay, as do those of other types than float32. The equations are those of the ONNX standard.
    """
    if not any(node.op_type in RECURRENT and not node.domain for node in model.graph.node):
        return model
    if opset_of(model) < _LEAST_OPSET:
        return model
    found = infer_types(model)
    graph = found.graph
    shapes = Types.of(graph).shapes
    weights = {each.name: each for each in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        cell = _cell(node, shapes, weights) if node.op_type in RECURRENT and not node.domain else None
        nodes += [node] if cell is None else _Writer(graph, cell).nodes()
    if len(nodes) == len(graph.node):
        return model
    set_all(graph.node, nodes)
    read = {name for node in all_nodes(graph) for name in node.input} | {each.name for each in graph.output}
    set_all(graph.initializer, [each for each in graph.initializer if each.name in read])
    return found


@dataclass(frozen=True)
class _Cell:
    """An operator over one step of ``batch`` rows; matrices are [direction, gates x hidden, elements]."""

    node: onnx.NodeProto
    batch: int
    of_data: Array
    of_state: Array
    bias: Array
    before: tuple[str, str]
    """The names of the state and of an LSTM's cell before the step; empty for zeros."""
    reset_after: bool

    @property
    def hidden(self) -> int:
        return int(self.of_state.shape[2])

    @property
    def directions(self) -> int:
        return int(self.of_state.shape[0])


def _cell(
    node: onnx.NodeProto, shapes: Mapping[str, Sequence[int]], weights: Mapping[str, onnx.TensorProto]
) -> _Cell | None:
    """The operator as a cell, or None if it is none that is written out."""
    inputs = [*node.input, *[""] * (8 - len(node.input))]
    data, of_data, of_state, bias, lengths, state, cell, peepholes = inputs
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    directions = _DIRECTIONS.get(attributes.get("direction", b"forward"), 0)
    usual = [each.encode() for each in RECURRENT[node.op_type]] * directions
    if (
        not directions
        or not _KNOWN.issuperset(attributes)
        or attributes.get("layout", 0)
        or attributes.get("input_forget", 0)
        or attributes.get("activations", usual) != usual
        or lengths
        or peepholes
    ):
        return None
    shape = shapes.get(data)
    if shape is None or len(shape) != 3 or shape[0] != 1 or not all(each > 0 for each in shape):
        return None
    constants = [weights.get(name) for name in (of_data, of_state, *([bias] if bias else []))]
    if any(each is None or each.data_type != onnx.TensorProto.FLOAT for each in constants):
        return None
    arrays = [array_of(each) for each in constants if each is not None]
    gates = _GATES[node.op_type]
    hidden = arrays[1].shape[2]
    terms = arrays[2] if bias else np.zeros((directions, 2 * gates * hidden), np.float32)
    wanted = (directions, gates * hidden, shape[2]), (directions, gates * hidden, hidden)
    if (arrays[0].shape, arrays[1].shape) != wanted or terms.shape != (directions, 2 * gates * hidden):
        return None
    after = bool(attributes.get("linear_before_reset", 0))
    return _Cell(node, shape[1], arrays[0], arrays[1], terms, (state, cell), after)


@dataclass
class _Writer:
    """Writes a cell as operators; constants go into the graph."""

    graph: onnx.GraphProto
    cell: _Cell
    made: list[onnx.NodeProto] = field(default_factory=list)

    def nodes(self) -> list[onnx.NodeProto]:
        cell = self.cell
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[cell.node.op_type]
        rows = self._reshaped(cell.node.input[0], (cell.batch, -1))
        results = [step(direction, rows) for direction in range(cell.directions)]
        names = [*cell.node.output, *[""] * (3 - len(cell.node.output))]
        whole = (1, cell.directions, cell.batch, cell.hidden)
        for name, parts, shape in (
            (names[0], [each[0] for each in results], whole),
            (names[1], [each[0] for each in results], whole[1:]),
            (names[2], [each[-1] for each in results], whole[1:]),
        ):
            if name:
                joined = parts[0] if len(parts) == 1 else self._node("Concat", parts, axis=0)
                self._reshaped(joined, shape, name)
        return self.made

    def _lstm(self, direction: int, rows: str) -> tuple[str, ...]:
        """The state and the cell after the step."""
        size = self.cell.hidden
        sums = self._sums(direction, rows, 4)
        let_in, let_out, keep = (
            self._node("Sigmoid", [self._sliced(sums, 1, at * size, (at + 1) * size)]) for at in range(3)
        )
        new = self._node("Mul", [let_in, self._node("Tanh", [self._sliced(sums, 1, 3 * size, 4 * size)])])
        if self.cell.before[1]:
            old = self._before(1, direction)
            new = self._node("Add", [self._node("Mul", [keep, old]), new])
        return self._node("Mul", [let_out, self._node("Tanh", [new])]), new

    def _gru(self, direction: int, rows: str) -> tuple[str, ...]:
        """The state after the step."""
        cell, size = self.cell, self.cell.hidden
        old = self._before(0, direction) if cell.before[0] else ""
        sums = self._sums(direction, rows, 2)
        update, reset = (self._node("Sigmoid", [self._sliced(sums, 1, at * size, (at + 1) * size)]) for at in range(2))
        third = slice(2 * size, 3 * size)
        of_data, of_state = cell.bias[direction][third], cell.bias[direction][5 * size :]
        if not cell.reset_after:
            of_data, of_state = of_data + of_state, np.zeros_like(of_state)
        proposed = self._product(rows, cell.of_data[direction][third], of_data)
        if old or of_state.any():
            matrix = cell.of_state[direction][third]
            if not old:
                seen = self._node("Mul", [reset, self._constant("bias", of_state)])
            elif cell.reset_after:
                seen = self._node("Mul", [reset, self._product(old, matrix, of_state)])
            else:
                seen = self._product(self._node("Mul", [reset, old]), matrix, None)
            proposed = self._node("Add", [proposed, seen])
        proposed = self._node("Tanh", [proposed])
        one = self._constant("one", np.ones((), np.float32))
        new = self._node("Mul", [self._node("Sub", [one, update]), proposed])
        return (self._node("Add", [new, self._node("Mul", [update, old])]) if old else new,)

    def _rnn(self, direction: int, rows: str) -> tuple[str, ...]:
        """The state after the step."""
        return (self._node("Tanh", [self._sums(direction, rows, 1)]),)

    def _sums(self, direction: int, rows: str, gates: int) -> str:
        """The sums of the first gates [batch, gates x hidden], by one product with what the step reads."""
        cell, part = self.cell, slice(0, gates * self.cell.hidden)
        half = cell.bias.shape[1] // 2
        bias = cell.bias[direction][:half][part] + cell.bias[direction][half:][part]
        matrix, read = cell.of_data[direction][part], rows
        if cell.before[0]:
            read = self._node("Concat", [rows, self._before(0, direction)], axis=1)
            matrix = np.concatenate([matrix, cell.of_state[direction][part]], 1)
        return self._product(read, matrix, bias)

    def _before(self, which: int, direction: int) -> str:
        """The state or the cell before the step [batch, hidden]."""
        cell, name = self.cell, self.cell.before[which]
        if cell.directions > 1:
            name = self._sliced(name, 0, direction, direction + 1)
        return self._reshaped(name, (cell.batch, cell.hidden))

    def _product(self, rows: str, matrix: Array, bias: Array | None) -> str:
        """Rows times the transpose of a matrix, and the bias."""
        found = self._node("MatMul", [rows, self._constant("weights", np.ascontiguousarray(matrix.T))])
        return found if bias is None else self._node("Add", [found, self._constant("bias", bias)])

    def _sliced(self, name: str, axis: int, begin: int, end: int) -> str:
        bounds = [self._constant("bound", np.array([each])) for each in (begin, end, axis)]
        return self._node("Slice", [name, *bounds])

    def _reshaped(self, name: str, shape: Sequence[int], output: str = "") -> str:
        return self._node("Reshape", [name, self._constant("shape", np.array(shape))], output)

    def _node(self, op: str, inputs: Sequence[str], output: str = "", **attributes: int) -> str:
        name = f"{self.cell.node.name}/{op}{len(self.made)}"
        output = output or f"{name}.result"
        node = helper.make_node(op, inputs, [output], name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.made.append(node)
        return output

    def _constant(self, what: str, array: Array) -> str:
        name = f"{self.cell.node.name}/{what}.{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name
