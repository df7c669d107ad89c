"""NaN, infinities and extreme numbers through what our kernels and MKL's do to their sums: as ONNX Runtime has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from collage.backends.base import Backend
from collage.backends.mkl import Mkl
from collage.backends.native import Native
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from tests.helpers.backends.native_checks import needs_native, run_variant, subgraphs_of
from tests.helpers.models import make_model

pytestmark = needs_native

_ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1e-38, 1e30, -1e30, 3.4e38, -3.4e38]
VALUES = np.array([*_ODD, 20, -20, 89, -89, 104, -104, 1e-10, 0.5, -0.5, 3, -3, 6, 7, -8], np.float32)
"""More than a vector, and no whole number of them."""

FUNCTIONS: dict[str, tuple[str, dict[str, Any], list[float]]] = {
    "relu": ("Relu", {}, []),
    "relu6": ("Clip", {}, [0.0, 6.0]),
    "clip": ("Clip", {}, [-1.5, 1.5]),
    "clip to one value": ("Clip", {}, [2.0, 1.0]),
    "max": ("Max", {}, [0.25]),
    "max of zero": ("Max", {}, [0.0]),
    "min": ("Min", {}, [0.25]),
    "sigmoid": ("Sigmoid", {}, []),
    "tanh": ("Tanh", {}, []),
    "gelu": ("Gelu", {}, []),
    "gelu by tanh": ("Gelu", {"approximate": "tanh"}, []),
    "silu": ("Silu", {}, []),
    "times": ("Mul", {}, [-3.0]),
    "plus": ("Add", {}, [-3.0]),
    "divided": ("Div", {}, [0.3]),
}
_BY_ZERO: tuple[str, dict[str, Any], list[float]] = ("Div", {}, [0.0])


def model(root: str, function: str) -> onnx.ModelProto:
    """The function of the input, which an operator before it gives on unchanged."""
    op, attrs, numbers = FUNCTIONS.get(function, _BY_ZERO)
    count = len(VALUES)
    weights = {f"n{i}": np.array(number, np.float32) for i, number in enumerate(numbers)}
    if root == "matmul":
        shape, weights["w"] = [count, 1], np.ones((1, 19), np.float32)
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    else:
        channels, outs = (1, 16) if root == "convolution" else (19, 19)
        shape, weights["w"] = [1, channels, 1, count], np.ones((outs, 1, 1, 1), np.float32)
        nodes = [helper.make_node("Conv", ["x", "w"], ["y"], group=channels)]
    if op == "Silu":
        nodes.append(helper.make_node("Sigmoid", ["y"], ["s"]))
        nodes.append(helper.make_node("Mul", ["y", "s"], ["z"]))
    else:
        nodes.append(helper.make_node(op, ["y", *(f"n{i}" for i in range(len(numbers)))], ["z"], **attrs))
    return make_model(nodes, {"x": shape}, {"z": [None] * len(shape)}, weights, opset=20)


def reference(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


_OF_CONVOLUTIONS = (
    "relu",
    "relu6",
    "clip",
    "clip to one value",
    "max",
    "max of zero",
    "min",
    "times",
    "plus",
)
CASES = [
    *((Native(), "matmul", each) for each in FUNCTIONS),
    *((Native(), root, each) for root in ("depthwise", "convolution") for each in _OF_CONVOLUTIONS),
    *((Mkl(), root, each) for root in ("matmul", "convolution") for each in FUNCTIONS),
]


def wholes(proto: onnx.ModelProto, backend: Backend) -> list[Subgraph]:
    return [s for s in subgraphs_of(proto, backend) if s.outputs == tuple(s.model.graph.outputs)]


@pytest.mark.parametrize(("backend", "root"), [(Native(), "matmul"), (Native(), "depthwise"), (Mkl(), "matmul")])
def test_a_division_by_zero_is_no_factor_of_the_weights(backend: Backend, root: str) -> None:
    assert backend.available() or isinstance(backend, Mkl)
    assert not wholes(model(root, "divided by zero"), backend)


@pytest.mark.parametrize(("backend", "root", "function"), CASES, ids=[f"{b.name} {root} {f}" for b, root, f in CASES])
def test_values(backend: Backend, root: str, function: str) -> None:
    if not backend.available():
        pytest.skip(backend.available().reason)
    proto = model(root, function)
    whole = wholes(proto, backend)
    assert whole
    kind = whole[-1].input_types[0]
    x = np.broadcast_to(VALUES[:, None] if root == "matmul" else VALUES, kind.shape).astype(np.float32)
    wanted = reference(proto, x)
    for variant in backend.variants(whole[-1], BuildOptions()):
        (found,) = run_variant(whole[-1], variant, 1, [x], backend)
        found = found.reshape(wanted.shape)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), err_msg=str(variant))
        np.testing.assert_array_equal(np.isposinf(found), np.isposinf(wanted), err_msg=str(variant))
        np.testing.assert_array_equal(np.isneginf(found), np.isneginf(wanted), err_msg=str(variant))
        finite = np.isfinite(wanted)
        np.testing.assert_allclose(found[finite], wanted[finite], rtol=1e-5, atol=1e-6, err_msg=str(variant))
