"""Sessions of engines that are bound to arrays: they read what these hold in each call, and their outputs stay."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from collage.backends.onnx_engine import OnnxEngine
from collage.backends.onnxruntime import OnnxRuntime
from collage.backends.openvino import OpenVino
from collage.kernel.buffers import aligned_copy
from collage.kernel.options import BuildOptions
from tests.models import make_model


@pytest.mark.parametrize("engine", [OnnxRuntime(), OpenVino()], ids=lambda engine: engine.name)
def test_inputs_are_read_where_they_are_and_outputs_are_new(engine: OnnxEngine) -> None:
    if not engine.available():
        pytest.skip(f"{engine.name} is not installed")
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["places"])]
    model = make_model(nodes, {"x": [2, 3]}, {"r": [2, 3]}, {})
    model.graph.output.append(helper.make_tensor_value_info("places", 7, [2, "n"]))
    x = aligned_copy(np.array([[1, -2, 3], [0, 5, -6]], np.float32))
    session = engine.session(model.SerializeToString(), BuildOptions(threads=1))
    call = session.bind_inputs([x])
    first = call()
    x[...] = [[-1, 2, -3], [7, 8, 9]]
    second = call()
    np.testing.assert_array_equal(first[0], [[1, 0, 3], [0, 5, 0]])
    np.testing.assert_array_equal(first[1], [[0, 0, 1], [0, 2, 1]])
    np.testing.assert_array_equal(second[0], [[0, 2, 0], [7, 8, 9]])
    np.testing.assert_array_equal(second[1], [[0, 1, 1, 1], [1, 0, 1, 2]])


def test_an_array_that_does_not_fit_is_refused() -> None:
    if not OpenVino().available():
        pytest.skip("OpenVINO is not installed")
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [2, 3]}, {"y": [2, 3]}, {})
    session = OpenVino().session(model.SerializeToString(), BuildOptions(threads=1))
    with pytest.raises(Exception, match="shape"):
        session.bind_inputs([np.zeros((3, 3), np.float32)])


def test_an_input_of_another_type_is_not_kept_for_later_calls() -> None:
    if not OpenVino().available():
        pytest.skip("OpenVINO is not installed")
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]}, {})
    session = OpenVino().session(model.SerializeToString(), BuildOptions(threads=1))
    for number, dtype in ((1, np.float32), (2, np.float64), (3, np.float32)):
        (found,) = session.run([np.full(2, number, dtype)])
        np.testing.assert_array_equal(found, [number, number])
