"""The arithmetic of a network's convolutions and matrix products, and the size of the weights that they read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """The multiplications and additions of the direct algorithm, padding included, and the bytes of constant operands.

    Winograd's algorithm needs fewer operations, so its rate by this number may exceed the machine's arithmetic limit.
    """

    flop: int
    weight_bytes: int


def node_work(model: onnx.ModelProto) -> dict[str, Work]:
    """The work of each Conv, ConvTranspose, Gemm and MatMul by the node's name. Shapes must be inferred before.

    Nodes of subgraphs and nodes with unknown shapes are left out.
    """
    shapes = known_shapes(model)
    weights = {tensor.name: _nbytes(tensor) for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        flop = _flop(node, shapes)
        if flop is not None:
            found[node.name] = Work(flop, sum(weights.get(name, 0) for name in node.input))
    return found


def known_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """The shapes of all values of which every extent is known."""
    graph = model.graph
    found: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.input, *graph.output, *graph.value_info):
        kind = info.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            found[info.name] = tuple(dim.dim_value for dim in kind.shape.dim)
    return found


def _flop(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int | None:
    """The operations of a node, or None for other operators and unknown shapes."""
    if node.domain not in ("", "ai.onnx") or not {*node.input[:2], node.output[0]} <= shapes.keys():
        return None
    output = shapes[node.output[0]]
    if node.op_type == "Conv":  # weights [outputs, inputs / groups, *kernel]
        return 2 * math.prod(output) * math.prod(shapes[node.input[1]][1:])
    if node.op_type == "ConvTranspose":  # weights [inputs, outputs / groups, *kernel]
        return 2 * math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type == "MatMul":
        return 2 * math.prod(output) * shapes[node.input[0]][-1]
    if node.op_type == "Gemm":
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return 2 * math.prod(output) * shapes[node.input[0]][0 if transposed else 1]
    return None


def _nbytes(tensor: onnx.TensorProto) -> int:
    size: int = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return math.prod(tuple[int, ...](tensor.dims)) * size
