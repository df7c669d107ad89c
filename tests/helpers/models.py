"""Small ONNX models for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 18,
    types: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of the given nodes; tensors are float32 unless ``types`` says otherwise."""
    kinds = dict(types or {})

    def infos(ports: Mapping[str, Sequence[int | str]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), list(s)) for n, s in ports.items()]

    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "test", infos(inputs), infos(outputs), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def conv_net(channels: int = 8, size: int = 16) -> onnx.ModelProto:
    """Two convolutions with bias and relu, a residual add, pooling and a dense layer."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((channels, 3, 3, 3)).astype(np.float32) * 0.2,
        "b1": rng.standard_normal(channels).astype(np.float32),
        "w2": rng.standard_normal((channels, channels, 3, 3)).astype(np.float32) * 0.2,
        "b2": rng.standard_normal(channels).astype(np.float32),
        "d": rng.standard_normal((channels, 10)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["a"], "residual"),
        helper.make_node("Relu", ["a"], ["r2"], "relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "d"], ["y"], "dense"),
    ]
    return make_model(nodes, {"x": [1, 3, size, size]}, {"y": [1, 10]}, weights)


def elementwise_net(size: int = 64) -> onnx.ModelProto:
    """relu(x) + tanh(x) * 2, quick to compile and to run."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Tanh", ["x"], ["t"], "tanh"),
        helper.make_node("Mul", ["t", "two"], ["m"], "mul"),
        helper.make_node("Add", ["r", "m"], ["y"], "add"),
    ]
    return make_model(nodes, {"x": [4, size]}, {"y": [4, size]}, {"two": np.array(2.0, np.float32)})


def positive_rows() -> onnx.ModelProto:
    """The rows of x (6 x 4) whose sum is positive: how many they are depends on the data."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["s"], "sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["mask"], "greater"),
        helper.make_node("Compress", ["x", "mask"], ["y"], "compress", axis=0),
    ]
    weights = {"axis": np.array([1]), "zero": np.array(0, np.float32)}
    return make_model(nodes, {"x": [6, 4]}, {"y": ["n", 4]}, weights)


def detector() -> onnx.ModelProto:
    """Two convolutions on x give scores of 64 boxes; the boxes are the input ``prior``, moved by what x tells.

    The best ones that do not overlap come out, and the scores of all.
    """
    rng = np.random.default_rng(3)
    weights = {
        "w1": rng.standard_normal((16, 3, 3, 3)).astype(np.float32) * 0.3,
        "w2": rng.standard_normal((6, 16, 3, 3)).astype(np.float32) * 0.3,
        "halves": np.array([2, 4]),
        "score_shape": np.array([1, 2, 64]),
        "move_shape": np.array([1, 64, 4]),
        "tenth": np.array(0.1, np.float32),
        "most": np.array([64]),
        "overlap": np.array([0.4], np.float32),
        "least": np.array([0.55], np.float32),
        "column": np.array([2]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Split", ["c2", "halves"], ["s", "m"], "halve", axis=1),
        helper.make_node("Reshape", ["s", "score_shape"], ["raw"], "score_rows"),
        helper.make_node("Sigmoid", ["raw"], ["scores"], "sigmoid"),
        helper.make_node("Reshape", ["m", "move_shape"], ["moves"], "move_rows"),
        helper.make_node("Mul", ["moves", "tenth"], ["small"], "little"),
        helper.make_node("Add", ["small", "prior"], ["boxes"], "move"),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["kept"], "suppress"),
        helper.make_node("Gather", ["kept", "column"], ["which"], "which", axis=1),
        helper.make_node("Gather", ["prior", "which"], ["y"], "pick", axis=1),
    ]
    inputs = {"x": [1, 3, 8, 8], "prior": [1, 64, 4]}
    return make_model(nodes, inputs, {"scores": [1, 2, 64], "y": [1, "n", 1, 4]}, weights)
