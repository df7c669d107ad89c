"""Views of quantised values are taken of their integers, and the results are the same to the bit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.frontend.rewrite.quantised import views_first
from collage.frontend.rewrite.simplify import simplify
from collage.frontend.session import reference_run
from tests.helpers.models import make_model

STEPS: dict[str, Any] = {
    "s": np.array(0.0217, np.float32),
    "z": np.array(7, np.uint8),
    "t": np.array(0.03, np.float32),
    "shape": np.array([6, 4]),
    "axes": np.array([0]),
}
TYPES = {"x": TensorProto.UINT8, "y": TensorProto.UINT8}
X = np.random.default_rng(0).integers(0, 255, (2, 3, 4), np.uint8, endpoint=True)


def floats(value: str, name: str, scale: str = "s") -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", [value, scale, "z"], [name])


def steps(value: str, name: str, scale: str = "s") -> onnx.NodeProto:
    return helper.make_node("QuantizeLinear", [value, scale, "z"], [name])


def model(*nodes: onnx.NodeProto, **types: int) -> onnx.ModelProto:
    return make_model(list(nodes), {"x": X.shape}, {"y": [None, None]}, STEPS, types={**TYPES, **types})


VIEWS = {
    "a reshape": helper.make_node("Reshape", ["xf", "shape"], ["v"]),
    "a flattening": helper.make_node("Flatten", ["xf"], ["v"], axis=2),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("simplified", [False, True])
def test_what_quantizes_again_vanishes(name: str, simplified: bool) -> None:
    proto = model(
        floats("x", "xf"), VIEWS[name], steps("v", "q"), floats("q", "qf"), helper.make_node("Relu", ["qf"], ["r"]),
        steps("r", "y", "t"),
    )  # fmt: skip
    wanted = reference_run(proto, {"x": X})
    found = simplify(proto) if simplified else views_first(proto)
    onnx.checker.check_model(found)
    np.testing.assert_array_equal(reference_run(found, {"x": X})[0], wanted[0])
    counts = Counter(node.op_type for node in found.graph.node)
    assert counts["DequantizeLinear"] == counts["QuantizeLinear"] == 1
    (view,) = (node for node in found.graph.node if node.op_type in ("Reshape", "Flatten"))
    assert view.input[0] == "x"


def test_several_views_and_a_change_of_axes() -> None:
    proto = model(
        floats("x", "xf"),
        VIEWS["a reshape"],
        helper.make_node("Transpose", ["v"], ["w"], perm=[1, 0]),
        helper.make_node("Unsqueeze", ["w", "axes"], ["u"]),
        helper.make_node("Squeeze", ["u", "axes"], ["f"]),
        helper.make_node("Exp", ["f"], ["y"]),
        y=TensorProto.FLOAT,
    )
    (wanted,) = reference_run(proto, {"x": X})
    found = views_first(proto)
    onnx.checker.check_model(found)
    np.testing.assert_array_equal(reference_run(found, {"x": X})[0], wanted)
    assert [node.op_type for node in found.graph.node][-2:] == ["DequantizeLinear", "Exp"]


@pytest.mark.parametrize(
    "nodes",
    [
        [floats("x", "xf"), VIEWS["a reshape"], steps("v", "y", "t")],
        [floats("x", "xf"), VIEWS["a reshape"], steps("v", "y")],
        [
            floats("x", "xf"),
            VIEWS["a reshape"],
            helper.make_node("Flatten", ["xf"], ["f"], axis=2),
            helper.make_node("Add", ["v", "f"], ["a"]),
            steps("a", "y", "t"),
        ],
    ],
    ids=["other steps", "an output of the model", "several readers"],
)
def test_what_is_needed_stays(nodes: list[onnx.NodeProto]) -> None:
    proto = model(*nodes)
    (wanted,) = reference_run(proto, {"x": X})
    found = views_first(proto)
    onnx.checker.check_model(found)
    np.testing.assert_array_equal(reference_run(found, {"x": X})[0], wanted)
    assert found.graph.node[-1].op_type == "QuantizeLinear"
