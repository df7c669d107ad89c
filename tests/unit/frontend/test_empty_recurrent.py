"""Recurrent operators over nothing: an error instead of the end of the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.engine_faults.empty_recurrent import empty_recurrent
from collage.backends.onnxruntime import OnnxRuntime
from collage.errors import InputError
from collage.graph.value_type import TENSOR, ValueType
from collage.kernel.options import BuildOptions
from collage.runtime.original import Fallback
from collage.schedule.suffix import ValuePort

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def tagger(op: str, *, lengths: bool = False, **attributes: Any) -> onnx.ModelProto:
    """A recurrent operator of open extents, behind a Relu."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node(
            op, ["a", "w", "r", *(["", "n"] if lengths else [])], ["y"], "cell", hidden_size=5, **attributes
        ),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", 3])]
    if lengths:
        inputs.append(helper.make_tensor_value_info("n", TensorProto.INT32, ["b"]))
    gates = 5 * GATES[op]
    weights = [
        numpy_helper.from_array(np.ones((1, gates, width), np.float32), name) for name, width in (("w", 3), ("r", 5))
    ]
    graph = helper.make_graph(
        nodes, "test", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "wanted"),
    [
        ("LSTM", (4, 0, 3), {}, "LSTM (cell) gets an empty batch"),
        ("LSTM", (0, 0, 3), {}, "LSTM (cell) gets an empty batch"),
        ("LSTM", (0, 4, 3), {}, ""),
        ("GRU", (4, 0, 3), {}, "GRU (cell) gets an empty batch"),
        ("GRU", (0, 4, 3), {}, "GRU (cell) gets no steps"),
        ("GRU", (2, 4, 3), {}, ""),
        ("RNN", (4, 0, 3), {}, ""),
    ],
)
def test_what_ends_the_process_is_named(op: str, shape: Sequence[int], attributes: dict[str, Any], wanted: str) -> None:
    assert empty_recurrent(tagger(op, **attributes), {"x": shape}) == wanted


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_an_empty_batch_is_an_error_before_onnx_runtime_has_it(op: str) -> None:
    data = tagger(op).SerializeToString()
    empty, full = np.zeros((4, 0, 3), np.float32), np.zeros((4, 2, 3), np.float32)
    session = OnnxRuntime().session(data, BuildOptions())
    with pytest.raises(InputError, match=rf"{op} \(cell\) gets an empty batch"):
        session.run([empty])
    with pytest.raises(InputError, match=rf"{op} \(cell\) gets an empty batch"):
        session.bind_inputs([empty])
    assert session.run([full])[0].shape == (4, 1, 2, 5)
    port = ValuePort("x", ValueType(TENSOR, "float32", (None, None, 3)))
    fallback = Fallback(data, [port], [ValuePort("y", ValueType(TENSOR, "float32", None))], 1)
    with pytest.raises(InputError, match="an empty batch"):
        fallback.run({"x": empty})
    assert fallback.run({"x": full})["y"].shape == (4, 1, 2, 5)
