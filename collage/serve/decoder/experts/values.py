"""What the values of a loop over experts are: masks of choices, rows that chose an expert, and what is made of these.

Axes have names: "token", "slot" (a token chooses an expert in each of its slots), "expert", "row" (of those that chose
one expert), "pair" (a row's token and slot), "feature", and "one" for an axis of one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import onnx

from collage.frontend.read.weights import array_of
from collage.graph.dataflow import Array
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute

TOKEN, SLOT, EXPERT, ROW, PAIR, FEATURE, ONE = "token", "slot", "expert", "row", "pair", "feature", "one"

Axes: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class ExpertChoice:
    """The experts that tokens choose, by number."""

    axes: Axes


@dataclass(frozen=True)
class Mask:
    """Whether a token chooses an expert in a slot; all experts where ``expert`` is None, or only this one."""

    axes: Axes
    expert: int | None = None


@dataclass(frozen=True)
class Hits:
    """Which experts any token has chosen, or their numbers, or some of these."""


@dataclass(frozen=True)
class Places:
    """The tokens and slots that chose an expert, in the order ``parts``, along the axis "pair"."""

    expert: int
    parts: tuple[str, ...]
    axes: Axes


@dataclass(frozen=True)
class Column:
    """A number for each row: its token, its slot, or its place among all pairs of these.

    ``slots`` is the factor of a token's number, ``with_slot`` tells whether the slot is added, and ``token`` whether
    there is a token at all.
    """

    expert: int
    axes: Axes
    token: bool
    slots: int = 1
    with_slot: bool = False


@dataclass(frozen=True)
class Lengths:
    """Extents of such values."""


@dataclass(frozen=True)
class Operand:
    """An operand of a step.

    ``kind`` is "step" for what an earlier step makes, whose number is ``step``. Others are the value ``name`` of the
    graph: "tokens" for rows of a value that tokens have, "gates" for the rows' own factors, "weight" for a parameter
    of the expert, transposed where ``turned``, "stack" for the parameters of all experts in one constant, and "same"
    for a number that all experts have in common. A "weight" with a ``number`` is the part of a constant that is at that
    place of its first axis. "integer" is the ``number`` itself, and "none" an operand that is left out.
    """

    kind: str
    name: str = ""
    step: int = -1
    turned: bool = False
    number: int | None = None


@dataclass(frozen=True)
class ExpertStep:
    operator: str
    attributes: bytes
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class ExpertRows:
    """What the rows that chose an expert have; ``made`` says how."""

    expert: int
    axes: Axes
    made: Operand


@dataclass(frozen=True)
class ExpertPart:
    """What one expert adds to the tokens, zeros for those that have not chosen it."""

    expert: int
    made: Operand


@dataclass(frozen=True)
class Total:
    """The parts of some experts, added to ``base``, or to zeros where that is ""."""

    base: str
    parts: tuple[ExpertPart, ...]


Value: TypeAlias = ExpertChoice | Mask | Hits | Places | Column | Lengths | ExpertRows | ExpertPart | Total


@dataclass(frozen=True)
class Mixture:
    """A mixture: ``total`` is the value that it makes [tokens, width], of the ``choice`` [tokens, slots].

    ``steps`` has the steps of each expert, from the first expert on, or those of all where their parameters are stacks.
    """

    choice: str
    slots: int
    made: str
    total: Total
    steps: tuple[tuple[ExpertStep, ...], ...]


@dataclass(frozen=True)
class Body:
    """The steps on which ``made`` depends, in order."""

    steps: tuple[ExpertStep, ...]
    made: Operand

    @staticmethod
    def of(steps: Sequence[ExpertStep], made: Operand) -> Body:
        """The body of an expert: those of its steps on which ``made`` depends."""
        wanted, waiting = set[int](), [made]
        while waiting:
            each = waiting.pop()
            if each.kind == "step" and each.step not in wanted:
                wanted.add(each.step)
                waiting += steps[each.step].operands
        places = {step: place for place, step in enumerate(sorted(wanted))}

        def moved(each: Operand) -> Operand:
            return Operand("step", step=places[each.step]) if each.kind == "step" else each

        kept = (steps[step] for step in places)
        return Body(
            tuple(ExpertStep(each.operator, each.attributes, tuple(map(moved, each.operands))) for each in kept),
            moved(made),
        )

    def all(self, kind: str) -> list[Operand]:
        return [each for step in self.steps for each in step.operands if each.kind == kind]

    def common(self, graph: OnnxGraph) -> object:
        """What all experts of a mixture must have in common: everything but the parameters' numbers."""

        def of(each: Operand) -> object:
            if each.kind == "weight":
                dims = tuple(graph.weights[each.name].dims)
                return each.turned, dims if each.number is None else dims[1:]
            if each.kind == "same":
                return number_of(graph, each).tobytes()
            return each

        return [(step.operator, step.attributes, tuple(map(of, step.operands))) for step in self.steps]


def number_of(graph: OnnxGraph, operand: Operand) -> Array:
    """The number of one element that all experts have in common, without axes."""
    found = graph.constants.get(operand.name)
    return (array_of(graph.weights[operand.name]) if found is None else found).reshape(())


_UNARY = frozenset(
    "Sigmoid Tanh Relu LeakyRelu Elu Gelu Erf Exp Softplus Neg Sqrt Abs Clip Swish HardSwish HardSigmoid Mish".split()
)
_BINARY = frozenset("Add Sub Mul Div Max Min Pow".split())


@dataclass
class ExpertSteps:
    graph: OnnxGraph
    all_steps: list[ExpertStep] = field(default_factory=list)

    @property
    def all(self) -> tuple[ExpertStep, ...]:
        return tuple(self.all_steps)

    def add(self, node: onnx.NodeProto, operands: Sequence[Operand | None]) -> Operand | None:
        """Add the steps of a node whose operands are rows, or None for what the graph has. None if it is none."""
        if node.op_type in ("Cast", "Identity"):
            return operands[0] if self._same_dtype(node) else None
        if node.op_type in ("MatMul", "Gemm"):
            return self._product(node, operands)
        if node.op_type not in _UNARY | _BINARY:
            return None
        given = [
            self._given(name) if each is None and name else each
            for each, name in zip(operands, node.input, strict=True)
        ]
        if any(each is None and name for each, name in zip(given, node.input, strict=True)):
            return None
        return self._append(node.op_type, _attributes(node), [each or Operand("none") for each in given])

    def add_for_all(self, node: onnx.NodeProto, operands: Sequence[Operand | None], experts: int) -> Operand | None:
        """Add the steps of a node that computes [experts, tokens, features], as ``add`` does."""
        if node.op_type == "MatMul":
            dims = self._dims(node.input[1])
            if operands[0] is None or len(dims) != 3 or dims[0] != experts:
                return None
            return self._append("MatMul", b"", [operands[0], Operand("stack", node.input[1])])
        if node.op_type == "Slice":
            return self._part(node, operands[0])
        given = list(operands)
        for place, name in enumerate(node.input):
            dims = self._dims(name)
            if given[place] is None and len(dims) == 3 and dims[:2] == (experts, 1):
                given[place] = Operand("stack", name)
        return self.add(node, given)

    def weighted(self, rows: Operand, gates: str) -> Operand:
        return self._append("Mul", b"", [rows, Operand("gates", gates)])

    def _dims(self, name: str) -> tuple[int, ...]:
        """The shape of a weight in float32, () for another value."""
        tensor = self.graph.weights.get(name)
        is_float = tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT
        return tuple(tensor.dims) if tensor is not None and is_float else ()

    def columns(self, rows: Operand, first: int, end: int, step: int = 1) -> Operand:
        bounds = [Operand("integer", number=each) for each in (first, end, 1, step)]
        return self._append("Slice", b"", [rows, *bounds])

    def _part(self, node: onnx.NodeProto, rows: Operand | None) -> Operand | None:
        rank = len(self.graph.shapes.get(node.input[0], ()))
        given = [self.graph.constants.get(name) for name in node.input[1:]]
        if rows is None or not rank or any(each is None or each.size != 1 for each in given):
            return None
        first, end, *rest = [int(each.reshape(-1)[0]) for each in given if each is not None]
        axis, step = (*rest, 1)[:2] if rest else (0, 1)
        return self.columns(rows, first, end, step) if axis % rank == rank - 1 else None

    def _same_dtype(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Identity" or attribute(node, "to") == onnx.TensorProto.FLOAT

    def _product(self, node: onnx.NodeProto, operands: Sequence[Operand | None]) -> Operand | None:
        rows, matrix = operands[0], self._parameter(node.input[1], 2)
        if rows is None or matrix is None:
            return None
        plain = all(attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
        if not plain or attribute(node, "transA", 0):
            return None
        turned = bool(attribute(node, "transB", 0))
        made = self._append("MatMul", b"", [rows, replace(matrix, turned=turned)])
        if len(node.input) < 3 or not node.input[2]:
            return made
        bias = self._given(node.input[2])
        return None if bias is None else self._append("Add", b"", [made, bias])

    def _given(self, name: str) -> Operand | None:
        """A value that is no row: a number that all experts have in common, or a vector of the expert's own."""
        if self.graph.scalar(name) is not None:
            return Operand("same", name)
        shape = self.graph.shapes.get(name, ())
        vector = shape and np.prod(shape) == shape[-1]
        return self._parameter(name, len(shape)) if vector else None

    def _parameter(self, name: str, rank: int) -> Operand | None:
        """A weight in float32 with so many axes, by itself or as a part of those of all experts."""
        node, place = self.graph.producers.get(name), None
        if node is not None and node.op_type == "Gather" and attribute(node, "axis", 0) == 0:
            name, number = node.input
            found, count = self.graph.constants.get(number), (*self._dims(name), 0)[0]
            if found is None or found.ndim or not -count <= int(found) < count:
                return None
            place, rank = int(found) % count, rank + 1
        return Operand("weight", name, number=place) if len(self._dims(name)) == rank else None

    def _append(self, operator: str, attributes: bytes, operands: Sequence[Operand]) -> Operand:
        self.all_steps.append(ExpertStep(operator, attributes, tuple(operands)))
        return Operand("step", step=len(self.all_steps) - 1)


def _attributes(node: onnx.NodeProto) -> bytes:
    each = onnx.NodeProto()
    each.attribute.extend(sorted(node.attribute, key=lambda one: str(one.name)))
    return bytes(each.SerializeToString(deterministic=True))
