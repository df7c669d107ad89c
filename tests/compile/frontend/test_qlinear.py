"""QLinear operators become what they stand for, and kernels of our own find it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.backends.onednn import OneDnn
from collage.frontend.model import import_model
from collage.frontend.rewrite.quantised import spelt_out
from collage.frontend.session import reference_run
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from tests.helpers.backends.onednn_checks import needs_exact_sums
from tests.helpers.models import make_model

RNG = np.random.default_rng(0)
STEPS: dict[str, Any] = {
    "xs": np.array(0.0217, np.float32),
    "xz": np.array(0, np.uint8),
    "ys": np.array(0.0313, np.float32),
    "yz": np.array(120, np.uint8),
}


def model(
    op: str, shape: tuple[int, ...], weights: tuple[int, ...], *, one: bool, bias: bool = False
) -> onnx.ModelProto:
    channels = weights[0] if op == "QLinearConv" else weights[1]
    terms = int(np.prod(weights)) // channels
    scale = RNG.uniform(0.5, 1.5, 1 if one else channels) / (127 * np.sqrt(terms))
    numbers = {
        **STEPS,
        "w": RNG.integers(-127, 127, weights, np.int8, endpoint=True),
        "ws": (scale[0] if one else scale).astype(np.float32),
        "wz": np.zeros([] if one else channels, np.int8),
    }
    operands = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    if bias:
        numbers["b"] = RNG.integers(-9000, 9000, channels, np.int32)
        operands.append("b")
    attrs = {"pads": [1, 1, 1, 1]} if op == "QLinearConv" else {}
    node = helper.make_node(op, operands, ["y"], **attrs)
    types = {"x": TensorProto.UINT8, "y": TensorProto.UINT8}
    return make_model([node], {"x": shape}, {"y": [None] * len(shape)}, numbers, types=types)


CASES = {
    "convolution": model("QLinearConv", (1, 16, 9, 9), (24, 16, 3, 3), one=False, bias=True),
    "convolution with one scale": model("QLinearConv", (1, 16, 9, 9), (24, 16, 3, 3), one=True),
    "product": model("QLinearMatMul", (17, 64), (64, 48), one=False),
    "product with one scale": model("QLinearMatMul", (17, 64), (64, 48), one=True),
}


@needs_exact_sums
@pytest.mark.parametrize("name", CASES)
def test_the_same_steps_by_one_kernel(name: str) -> None:
    proto = CASES[name]
    before = proto.SerializeToString()
    found = spelt_out(proto)
    assert proto.SerializeToString() == before
    onnx.checker.check_model(found)
    assert not any(node.op_type.startswith("QLinear") for node in found.graph.node)
    shape = [each.dim_value for each in proto.graph.input[0].type.tensor_type.shape.dim]
    x = RNG.integers(0, 255, shape, np.uint8, endpoint=True)
    (wanted,), (made,) = (reference_run(each, {"x": x}) for each in (proto, found))
    off = np.abs(made.astype(int) - wanted.astype(int))
    assert off.max() <= 1
    assert np.mean(off > 0) < 0.01
    assert np.ptp(wanted) > 100
    imported = import_model(proto)
    sources = OneDnn().sources(BuildOptions())
    kernels = [f.nodes for each in sources for f in each.find(MatchContext(imported)) if not f.reason]
    assert tuple(range(len(imported.graph.nodes))) in kernels


def test_what_is_no_constant_stays() -> None:
    proto = CASES["product"]
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    weights = next(each for each in other.graph.initializer if each.name == "w")
    other.graph.initializer.remove(weights)
    other.graph.input.append(helper.make_tensor_value_info("w", TensorProto.INT8, [64, 48]))
    assert [node.op_type for node in spelt_out(other).graph.node] == ["QLinearMatMul"]
    plain = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]})
    assert spelt_out(plain) is plain
