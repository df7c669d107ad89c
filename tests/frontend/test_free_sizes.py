"""OpenVINO does not check sizes that callers choose, so models with such sizes do not run on it as a whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.backends.base import UnsupportedError
from collage.backends.openvino import OpenVino
from collage.frontend.free_sizes import free_size
from collage.kernel.options import BuildOptions
from tests.backends_for_tests import onnx_model

X = {"x": ((2, 3, 4), TensorProto.FLOAT)}
OUT = {"y": ((None,), TensorProto.FLOAT)}


def reshaped(*before: onnx.NodeProto, size: str = "size") -> onnx.ModelProto:
    nodes = [*before, helper.make_node("Reshape", ["x", size], ["y"], name="flat")]
    inputs = {**X, "size": ((1,), TensorProto.INT64)}
    return onnx_model(nodes, inputs, OUT, {"whole": np.array([-1])})


@pytest.mark.parametrize(
    ("model", "where"),
    [
        (reshaped(), "Reshape flat"),
        (reshaped(helper.make_node("Abs", ["size"], ["other"]), size="other"), "Reshape flat"),
        (reshaped(size="whole"), ""),
        (reshaped(helper.make_node("Shape", ["x"], ["other"]), size="other"), ""),
    ],
)
def test_free_size(model: onnx.ModelProto, where: str) -> None:
    assert free_size(model) == where
    if where:
        with pytest.raises(ValueError, match="does not check the sizes"):
            OpenVino().check_model(model.SerializeToString())
    else:
        OpenVino().check_model(model.SerializeToString())


def test_openvino_gets_valid_models_only() -> None:
    node = helper.make_node("Not", ["x"], ["y"], strides=255)
    kind = ((3, 4), TensorProto.BOOL)
    model = onnx_model([node], {"x": kind}, {"y": kind})
    with pytest.raises(ValueError, match=r"no valid ONNX.*strides"):
        OpenVino().check_model(model.SerializeToString())
    with pytest.raises(UnsupportedError, match=r"no valid ONNX.*strides"):
        OpenVino().codegen_model(model, BuildOptions())
