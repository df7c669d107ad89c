"""Models in float16, made of the same ones in float32: every value and every weight has that dtype."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

__all__ = ["in_half"]


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all float32 values in float16.

    It has graphs of plain operators only: no dtypes in attributes, and no graphs in operators. What lies between
    operators is inferred again.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for info in (*made.graph.input, *made.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.FLOAT16
    for weight in made.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(weight).astype(np.float16)
            weight.CopyFrom(numpy_helper.from_array(np.asarray(array), weight.name))
    del made.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(made, data_prop=True)
