"""ONNX types as ValueType."""

from __future__ import annotations

import numpy as np
import onnx

from collage.errors import ModelError
from collage.graph.value_type import OPTIONAL, SEQUENCE, STRING, TENSOR, ValueType


def value_type(proto: onnx.TypeProto) -> ValueType:
    """The type of an ONNX value."""
    which = proto.WhichOneof("value") or "unknown"
    if which == "tensor_type":
        tensor = proto.tensor_type
        # Exporters write -1, too, for an extent that is not known.
        shape = tuple(
            d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in tensor.shape.dim
        )
        return ValueType(TENSOR, _dtype(tensor.elem_type), shape if tensor.HasField("shape") else None)
    if which == "sequence_type":
        return ValueType(SEQUENCE, element=value_type(proto.sequence_type.elem_type))
    if which == "optional_type":
        return ValueType(OPTIONAL, element=value_type(proto.optional_type.elem_type))
    return ValueType(which.removesuffix("_type"))


def _dtype(element: int) -> str:
    if element == onnx.TensorProto.STRING:
        return STRING
    try:
        name: str = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element)).name
    except (KeyError, ValueError, TypeError):
        raise ModelError(
            f"the model has tensors of type {element}, which the installed onnx does not know."
        ) from None
    return name
