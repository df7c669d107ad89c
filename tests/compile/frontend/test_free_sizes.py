"""OpenVINO does not check sizes that callers choose, so models with such sizes do not run on it as a whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.backends.base import UnsupportedError
from collage.backends.engine_faults.free_sizes import free_size, impossible_size
from collage.backends.openvino import OpenVino
from collage.kernel.options import BuildOptions
from tests.helpers.backends_for_tests import onnx_model

X = {"x": ((2, 3, 4), TensorProto.FLOAT)}
OUT = {"y": ((None,), TensorProto.FLOAT)}


def reshaped(*before: onnx.NodeProto, size: str = "size") -> onnx.ModelProto:
    nodes = [*before, helper.make_node("Reshape", ["x", size], ["y"], name="flat")]
    inputs = {**X, "size": ((1,), TensorProto.INT64)}
    return onnx_model(nodes, inputs, OUT, {"whole": np.array([-1])})


def omitted() -> onnx.ModelProto:
    """An output that is left out, and a size that is left out: neither has a name."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "w"], ["n", "", "d"]),
        helper.make_node("Resize", ["n", "", "scales"], ["y"], name="twice", mode="nearest"),
    ]
    weights = {"w": np.ones(4, np.float32), "scales": np.array([1, 1, 2], np.float32)}
    return onnx_model(nodes, X, {"y": ((2, 3, 8), TensorProto.FLOAT)}, weights)


@pytest.mark.parametrize(
    ("model", "where"),
    [
        (omitted(), ""),
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


@pytest.mark.parametrize(
    ("width", "where"), [(5, ""), (0, "RoiAlign output_width=0"), (-1, "RoiAlign output_width=-1")]
)
def test_impossible_size(width: int, where: str) -> None:
    """With a width of 0 OpenVINO 2026.4 writes beside its buffers, and a later model crashes."""
    node = helper.make_node("RoiAlign", ["x", "rois", "items"], ["y"], output_height=5, output_width=width)
    inputs = {
        "x": ((1, 1, 10, 10), TensorProto.FLOAT),
        "rois": ((3, 4), TensorProto.FLOAT),
        "items": ((3,), TensorProto.INT64),
    }
    model = onnx_model([node], inputs, {"y": ((3, 1, 5, 5), TensorProto.FLOAT)})
    assert impossible_size(model) == where
    if where:
        with pytest.raises(ValueError, match=f"does not check sizes.*{where}"):
            OpenVino().check_model(model.SerializeToString())
        with pytest.raises(UnsupportedError, match=f"does not check sizes.*{where}"):
            OpenVino().compile_onnx(model, BuildOptions(threads=1))
    else:
        assert OpenVino().compile_onnx(model, BuildOptions(threads=1))


def test_openvino_gets_valid_models_only() -> None:
    node = helper.make_node("Not", ["x"], ["y"], strides=255)
    kind = ((3, 4), TensorProto.BOOL)
    model = onnx_model([node], {"x": kind}, {"y": kind})
    with pytest.raises(ValueError, match=r"no valid ONNX.*strides"):
        OpenVino().check_model(model.SerializeToString())
    with pytest.raises(UnsupportedError, match=r"no valid ONNX.*strides"):
        OpenVino().codegen_model(model, BuildOptions())
