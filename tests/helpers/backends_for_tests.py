"""A numpy backend for a handful of operators, and small models to try it on."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import Availability, Backend, BackendKind, UnsupportedError
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions

_OPS: Mapping[str, Callable[..., Any]] = {
    "nn.relu": lambda x: np.maximum(x, 0),
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "tanh": np.tanh,
    "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "matmul": np.matmul,
}


class NumpyKernel(Kernel):
    """Interprets a list of (operator, input ids, output id)."""

    def __init__(self, steps: Sequence[Any], inputs: Sequence[int], outputs: Sequence[int], weights: Any) -> None:
        self.steps, self.inputs, self.outputs, self.weights = steps, inputs, outputs, weights

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        def call() -> None:
            values: dict[int, Any] = {**self.weights, **dict(zip(self.inputs, inputs, strict=True))}
            for op, read, made in self.steps:
                values[made] = _OPS[op](*(values[v] for v in read))
            for value, array in zip(self.outputs, outputs, strict=True):
                array[...] = values[value]

        return call


class NumpyBackend(Backend):
    """Well-behaved, and slow."""

    name: ClassVar[str] = "numpy"
    kind: ClassVar[BackendKind] = BackendKind.LIBRARY

    def available(self) -> Availability:
        return Availability(version=np.__version__)

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        return ()

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        for node in subgraph.operators:
            if node.op not in _OPS:
                raise UnsupportedError(f"no numpy kernel for {node.op}")
        steps = [(node.op, node.inputs, node.outputs[0]) for node in subgraph.operators]
        return pickle.dumps((steps, subgraph.inputs, subgraph.outputs, dict(subgraph.weights)))

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        return NumpyKernel(*pickle.loads(artifact))


def onnx_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[Sequence[int], int]],
    outputs: Mapping[str, tuple[Sequence[int], int]],
    weights: Mapping[str, Array] = {},
    opset: int = 18,
) -> onnx.ModelProto:
    """An ONNX model; inputs and outputs are given as shape and ONNX element type by name."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, element, shape) for name, (shape, element) in inputs.items()],
        [helper.make_tensor_value_info(name, element, shape) for name, (shape, element) in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def chain_model(shape: Sequence[int] = (8, 16)) -> Model:
    """x → add(x, w) → relu → tanh → mul by itself: 4 nodes, ids 0 to 3, one constant."""
    float_type = (shape, TensorProto.FLOAT)
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("Mul", ["c", "c"], ["y"]),
    ]
    weight = np.linspace(-1, 1, shape[-1], dtype=np.float32)
    return import_model(onnx_model(nodes, {"x": float_type}, {"y": float_type}, {"w": weight}))
