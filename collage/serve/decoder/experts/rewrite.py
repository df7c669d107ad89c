"""Decoders whose mixtures of experts have fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage.frontend.read.weights import array_of
from collage.graph.dataflow import Array
from collage.serve.decoder.experts.dense import dense_mixtures
from collage.serve.decoder.experts.read import mixtures
from collage.serve.decoder.experts.sorted import sorted_mixtures
from collage.serve.decoder.experts.values import Body, ExpertStep, Mixture, Operand, number_of
from collage.serve.decoder.onnx_graph import DOMAIN, GraphSizes, OnnxGraph, product, read_graph


@dataclass(frozen=True)
class Written:
    """The nodes that make a mixture's value, and the constants that they read."""

    nodes: Sequence[onnx.NodeProto]
    constants: Sequence[onnx.TensorProto]


def write(mixture: Mixture, graph: OnnxGraph) -> Written | None:
    """The mixture in that form, or None if its experts do not compute the same of other weights."""
    bodies = [
        Body.of(steps, part.made)
        for steps, part in zip(mixture.steps, sorted(mixture.total.parts, key=lambda each: each.expert), strict=True)
    ]
    first = bodies[0]
    if any(body.common(graph) != first.common(graph) for body in bodies):
        return None
    tokens = {each.name for body in bodies for each in body.all("tokens")}
    gates = {each.name for body in bodies for each in body.all("gates")}
    known = mixture.made in graph.shapes
    if len(tokens) != 1 or len(gates) > 1 or first.made.kind != "step" or not known:
        return None
    return _Writer(mixture, graph).write(bodies, tokens.pop(), next(iter(gates), ""))


@dataclass
class _Writer:
    mixture: Mixture
    graph: OnnxGraph
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def write(self, bodies: Sequence[Body], tokens: str, gates: str) -> Written:
        slots, shape = self.mixture.slots, self.graph.shapes[self.mixture.made]
        choice = self._reshaped(self.mixture.choice, [-1], "choice")
        rows = self._reshaped(tokens, [-1, 1, self._width(tokens)], "tokens")
        rows = self._node("Expand", [rows, self._integers([1, slots, 1], "slots")], "each slot")
        operands = {
            "tokens": self._reshaped(rows, [-1, self._width(tokens)], "rows"),
            "gates": self._reshaped(gates, [-1, 1], "gates") if gates else "",
        }
        results: list[str] = []
        for place, step in enumerate(bodies[0].steps):
            names = []
            for number, each in enumerate(step.operands):
                if each.kind == "step":
                    names.append(results[each.step])
                elif each.kind == "stack":
                    names.append(self._stack(each, step))
                elif each.kind == "same":
                    names.append(self._constant(number_of(self.graph, each), f"{place}.{number}"))
                elif each.kind == "integer":
                    names.append(self._integers([each.number or 0], f"integer {each.number}"))
                elif each.kind == "weight":
                    own = [body.steps[place].operands[number] for body in bodies]
                    names.append(self._stacked(own, step, f"{place}.{number}"))
                else:
                    names.append(operands.get(each.kind, each.name))
            results.append(self._step(step, names, choice, place))
        last = self._reshaped(results[bodies[0].made.step], [-1, slots, shape[-1]], "by slot")
        total = self._node("ReduceSum", [last, self._integers([1], "axis")], "sum", keepdims=0)
        tokens_of = self.graph.shapes[self.mixture.choice][0]
        total = self._reshaped(total, [-1 if size == tokens_of else size for size in shape], "total")
        base = self.mixture.total.base
        self._node("Add" if base else "Identity", [base, total] if base else [total], "")
        return Written(self.nodes, list(self.constants.values()))

    def _width(self, tokens: str) -> int:
        return int(np.prod(self.graph.shapes[tokens])) // self.graph.shapes[self.mixture.choice][0]

    def _step(self, step: ExpertStep, names: Sequence[str], choice: str, place: int) -> str:
        """A step for all rows: each reads the parameters of the expert that it has chosen."""
        if step.operator == "MatMul":
            node = product(names[0], names[1], choice, self._name(f"step {place}"))
            self.nodes.append(node)
            return str(node.output[0])
        found = [
            self._node("Gather", [name, choice], f"step {place}.{number}", axis=0)
            if each.kind in ("weight", "stack")
            else name
            for number, (name, each) in enumerate(zip(names, step.operands, strict=True))
        ]
        name = self._node(step.operator, found, f"step {place}")
        given = onnx.NodeProto()
        given.ParseFromString(step.attributes)
        self.nodes[-1].attribute.extend(given.attribute)
        return name

    def _stacked(self, operands: Sequence[Operand], step: ExpertStep, about: str) -> str:
        """The experts' parameters, one after the other: matrices of a product, or vectors."""
        known = {name: array_of(self.graph.weights[name]) for name in {each.name for each in operands}}
        arrays = [known[each.name] if each.number is None else known[each.name][each.number] for each in operands]
        if step.operator != "MatMul":
            return self._constant(np.stack([each.reshape(-1) for each in arrays]), about)
        turned = operands[0].turned  # of all, or of none
        return self._constant(np.stack([each.T if turned else each for each in arrays]), about)

    def _stack(self, operand: Operand, step: ExpertStep) -> str:
        """Parameters that are one after the other already: matrices, or vectors, each with an axis of one element."""
        if step.operator == "MatMul":
            return operand.name
        array = array_of(self.graph.weights[operand.name])
        return self._constant(array.reshape(array.shape[0], -1), operand.name)

    def _reshaped(self, name: str, shape: Sequence[int], about: str) -> str:
        return self._node("Reshape", [name, self._integers(shape, f"{about}/shape")], about)

    def _integers(self, numbers: Sequence[int], about: str) -> str:
        return self._constant(np.array(numbers, np.int64), about)

    def _constant(self, array: Array, about: str) -> str:
        name = self._name(f"{about}/constant")
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def _node(self, operator: str, inputs: Sequence[str], about: str, **attributes: int) -> str:
        """Add a node, which makes the mixture's value if it is about nothing else."""
        name = self._name(about) if about else self.mixture.made
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name))
        self.nodes[-1].attribute.extend(helper.make_attribute(*each) for each in attributes.items())
        return name

    def _name(self, about: str) -> str:
        return f"{self.mixture.made}/experts/{about}"


_READERS = (mixtures, dense_mixtures, sorted_mixtures)
_OLDEST_SET = 13
"""The operator set since which the axes of a sum are an input."""


def with_fixed_shapes(model: onnx.ModelProto, probe: GraphSizes) -> onnx.ModelProto:
    """The model with its loops over experts as products that choose their matrix; the model itself without any.

    A loop that is not understood stays: its operators are refused by their names later.
    """
    sets = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    if min(sets, default=0) < _OLDEST_SET or all(node.op_type != "TopK" for node in model.graph.node):
        return model
    graph = read_graph(model, probe)
    found: dict[str, Written] = {}
    for mixture in (each for read in _READERS for each in read(graph, probe.tokens)):
        written = write(mixture, graph)
        if written is not None:
            found[mixture.made] = written
    if not found:
        return model
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        made = [name for name in node.output if name in found]
        nodes += found[made[0]].nodes if made else [node]
    nodes = _needed_nodes(nodes, [each.name for each in model.graph.output])
    read = {name for node in nodes for name in node.input}
    weights = [each for each in model.graph.initializer if each.name in read]
    weights += [each for written in found.values() for each in written.constants]
    changed = helper.make_graph(
        nodes, model.graph.name, model.graph.input, model.graph.output, value_info=model.graph.value_info
    )
    sets_with_products = [*model.opset_import, helper.make_opsetid(DOMAIN, 1)]
    whole = helper.make_model(changed, opset_imports=sets_with_products, ir_version=model.ir_version)
    whole.graph.initializer.extend(weights)  # each copy of them takes seconds
    return whole


def _needed_nodes(nodes: list[onnx.NodeProto], outputs: list[str]) -> list[onnx.NodeProto]:
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]
