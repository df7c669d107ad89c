"""The operators on one expert's rows, in an order that all experts of a mixture have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from collage.serve.decoder.experts.values import Operand, Step
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute

_UNARY = frozenset(
    "Sigmoid Tanh Relu LeakyRelu Elu Gelu Erf Exp Softplus Neg Sqrt Abs Clip Swish HardSwish HardSigmoid Mish".split()
)
_BINARY = frozenset("Add Sub Mul Div Max Min Pow".split())


@dataclass
class Steps:
    """The steps of one expert so far."""

    graph: OnnxGraph
    all_steps: list[Step] = field(default_factory=list)

    @property
    def all(self) -> tuple[Step, ...]:
        """The steps, in order."""
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

    def add_for_all(
        self, node: onnx.NodeProto, operands: Sequence[Operand | None], experts: int
    ) -> Operand | None:
        """Add the steps of a node that computes [experts, tokens, features], as ``add`` does."""
        if node.op_type == "MatMul":
            dims = self._dims(node.input[1])
            if operands[0] is None or len(dims) != 3 or dims[0] != experts:
                return None
            return self._append("MatMul", b"", [operands[0], Operand("stack", node.input[1])])
        if node.op_type == "Slice":
            return self._columns(node, operands[0])
        given = list(operands)
        for place, name in enumerate(node.input):
            dims = self._dims(name)
            if given[place] is None and len(dims) == 3 and dims[:2] == (experts, 1):
                given[place] = Operand("stack", name)
        return self.add(node, given)

    def weighted(self, rows: Operand, gates: str) -> Operand:
        """Add the product of rows with their factors."""
        return self._append("Mul", b"", [rows, Operand("gates", gates)])

    def _dims(self, name: str) -> tuple[int, ...]:
        """The shape of a weight in float32, () for another value."""
        tensor = self.graph.weights.get(name)
        is_float = tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT
        return tuple(tensor.dims) if tensor is not None and is_float else ()

    def _columns(self, node: onnx.NodeProto, rows: Operand | None) -> Operand | None:
        """A part of the features, by constant bounds."""
        axes = self.graph.constants.get(node.input[3]) if len(node.input) > 3 else None
        rank = len(self.graph.shapes.get(node.input[0], ()))
        if rows is None or axes is None or [int(each) % rank for each in axes.reshape(-1)] != [rank - 1]:
            return None
        bounds = [node.input[1], node.input[2], *node.input[4:5]]
        if any(self.graph.scalar(name) is None for name in bounds):
            return None
        first, last, *step = (Operand("same", name) for name in bounds)
        return self._append("Slice", b"", [rows, first, last, Operand("last axis"), *step])

    def _same_dtype(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Identity" or attribute(node, "to") == onnx.TensorProto.FLOAT

    def _product(self, node: onnx.NodeProto, operands: Sequence[Operand | None]) -> Operand | None:
        rows, matrix = operands[0], node.input[1]
        tensor = self.graph.weights.get(matrix)
        if (
            rows is None
            or tensor is None
            or len(tensor.dims) != 2
            or tensor.data_type != onnx.TensorProto.FLOAT
        ):
            return None
        plain = all(attribute(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
        if not plain or attribute(node, "transA", 0):
            return None
        turned = bool(attribute(node, "transB", 0))
        made = self._append("MatMul", b"", [rows, Operand("weight", matrix, turned=turned)])
        if len(node.input) < 3 or not node.input[2]:
            return made
        bias = self._given(node.input[2])
        return None if bias is None else self._append("Add", b"", [made, bias])

    def _given(self, name: str) -> Operand | None:
        """A value that is no row: a number that all experts have in common, or a vector of the expert's own."""
        tensor = self.graph.weights.get(name)
        if tensor is not None and np.prod(tensor.dims) > 1:
            vector = np.prod(tensor.dims) == tensor.dims[-1] and tensor.data_type == onnx.TensorProto.FLOAT
            return Operand("weight", name) if vector else None
        return Operand("same", name) if self.graph.scalar(name) is not None else None

    def _append(self, operator: str, attributes: bytes, operands: Sequence[Operand]) -> Operand:
        self.all_steps.append(Step(operator, attributes, tuple(operands)))
        return Operand("step", step=len(self.all_steps) - 1)


def _attributes(node: onnx.NodeProto) -> bytes:
    each = onnx.NodeProto()
    each.attribute.extend(sorted(node.attribute, key=lambda one: str(one.name)))
    return bytes(each.SerializeToString(deterministic=True))
