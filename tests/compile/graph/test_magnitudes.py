"""Bounds of magnitudes: whatever finite numbers go in, no value of a network is beyond its bound."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.frontend.model import import_model
from collage.frontend.session import reference_run
from collage.graph.magnitudes import Magnitudes
from tests.helpers.models import make_model

N = helper.make_node


def f(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network() -> onnx.ModelProto:
    weights = {
        "w": f(8, 3, 3, 3),
        "b": f(8),
        "scale": f(8, seed=1),
        "shift": f(8, seed=2),
        "mean": f(8, seed=3),
        "variance": np.abs(f(8, seed=4)),
        "low": np.float32(-2),
        "high": np.float32(6),
        "up": f(8, 4, 2, 2),
        "grouped": f(6, 2, 3, 3),
        "row": np.array([1, -1], np.int64),
        "product": f(4 * 18 * 18, 5),
        "zero": np.array([0], np.int64),
        "three": np.array([3], np.int64),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
        "twice": np.array([1, 1, 2, 2], np.float32),
        "picked": np.array([0, 2], np.int64),
        "halves": np.array([2, 2], np.int64),
        "left": f(7, 2),
        "wide": np.array([2, 5], np.int64),
    }
    nodes = [
        N("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4),
        N("Relu", ["c"], ["r0"]),
        N("BatchNormalization", ["r0", "scale", "shift", "mean", "variance"], ["n"]),
        N("Clip", ["n", "low", "high"], ["r"]),
        N("MaxPool", ["n"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        N("ConvTranspose", ["p", "up"], ["t"], strides=[2, 2]),
        N("AveragePool", ["t"], ["a"], kernel_shape=[3, 3], pads=[1] * 4),
        N("Conv", ["a", "grouped"], ["g"], group=2),
        N("GlobalAveragePool", ["a"], ["ga"]),
        N("Mul", ["a", "ga"], ["m"]),
        N("Pad", ["m", "pads"], ["pd"]),
        N("Reshape", ["pd", "row"], ["f"]),
        N("MatMul", ["f", "product"], ["mm"]),
        N("Softmax", ["mm"], ["s"]),
        N("Sub", ["mm", "s"], ["sub"]),
        N("Slice", ["f", "zero", "three", "zero"], ["sl"]),
        N("Resize", ["p", "", "twice"], ["up2"], mode="linear"),
        N("Gather", ["mm", "picked"], ["ta"], axis=1),
        N("Split", ["a", "halves"], ["s1", "s2"], axis=1),
        N("Concat", ["s2", "s1"], ["cc"], axis=1),
        N("LeakyRelu", ["mm"], ["lr"], alpha=-1.5),
        N("HardSwish", ["mm"], ["hs"]),
        N("Transpose", ["mm"], ["tr"]),
        N("ReduceMean", ["a"], ["rm"]),
        N("ReduceSum", ["a"], ["rs"]),
        N("Div", ["mm", "high"], ["d"]),
        N("Gelu", ["mm"], ["ge"]),
        N("Max", ["mm", "low"], ["mx"]),
        N("Expand", ["mm", "wide"], ["ex"]),
        N("MatMul", ["left", "ex"], ["lm"]),
        N("MatMul", ["mm", "tr"], ["both"]),
        N("Floor", ["mm"], ["fl"]),
        N("Cast", ["mm"], ["whole"], to=TensorProto.INT64),
        N("Where", ["cond", "mm", "high"], ["wh"]),
        N("Sigmoid", ["mm"], ["sg"]),
    ]
    made = [name for node in nodes for name in node.output]
    model = make_model(
        nodes, {"x": [1, 3, 16, 16], "cond": [1, 5]}, {}, weights, opset=20, types={"cond": TensorProto.BOOL}
    )
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    model.graph.output.extend(info for info in inferred.graph.value_info if info.name in made)
    return model


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_no_value_is_beyond_its_bound(size: float) -> None:
    proto = network()
    model = import_model(proto)
    graph = model.graph
    bounds = Magnitudes(graph).through(graph.nodes, {model.onnx_values["x"]: size})
    assert len({node.op for node in graph.nodes}) > 25
    known = [value for node in graph.nodes for value in node.outputs if math.isfinite(bounds[value])]
    assert len(known) > 0.9 * len(bounds)
    rng = np.random.default_rng(5)
    for sample in (
        np.full((1, 3, 16, 16), size, np.float32),
        rng.uniform(-size, size, (1, 3, 16, 16)).astype(np.float32),
        rng.choice([-size, size], (1, 3, 16, 16)).astype(np.float32),
    ):
        feeds = {"x": sample, "cond": np.array([[True, False, True, True, False]])}
        for info, array in zip(proto.graph.output, reference_run(proto, feeds), strict=True):
            bound = bounds[model.onnx_values[info.name]]
            assert np.abs(array.astype(np.float64)).max(initial=0) <= 1.0001 * bound, info.name


def test_the_bound_of_a_convolution_is_reached() -> None:
    proto = make_model(
        [N("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 3, 3]}, {"y": [1, 4, 1, 1]}, {"w": f(4, 3, 3, 3)}
    )
    model = import_model(proto)
    bounds = Magnitudes(model.graph).through(model.graph.nodes, {model.onnx_values["x"]: 5.0})
    largest = max(
        float(np.abs(reference_run(proto, {"x": 5 * np.sign(row)[None]})[0]).max()) for row in f(4, 3, 3, 3)
    )
    assert largest == pytest.approx(bounds[model.onnx_values["y"]], rel=1e-5)


def test_what_is_unbounded_stays_so() -> None:
    """Nothing is known after NaN, infinite weights, or an operator that nothing is known of."""
    nodes = [
        N("Sigmoid", ["x"], ["a"]),
        N("Mul", ["k", "huge"], ["b"]),
        N("Exp", ["k"], ["c"]),
        N("Clip", ["c", "zero", "one"], ["d"]),
        N("MatMul", ["k", "large"], ["e"]),
        N("MatMul", ["e", "large"], ["g"]),
    ]
    weights = {
        "huge": np.array([1, np.inf], np.float32),
        "large": np.full((2, 2), 1e20, np.float32),
        "zero": np.float32(0),
        "one": np.float32(1),
    }
    shapes = {name: [2, 2] for name in "abcdeg"}
    model = import_model(make_model(nodes, {"x": [2, 2], "k": [2, 2]}, shapes, weights))
    bounds = Magnitudes(model.graph).through(model.graph.nodes, {model.onnx_values["k"]: 1.0})
    found = {name: bounds[model.onnx_values[name]] for name in "abcdeg"}
    assert found.pop("e") == pytest.approx(2e20)
    assert set(found.values()) == {math.inf}
