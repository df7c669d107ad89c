"""Artifacts of ONNX models as engines read them, without the package onnx."""

from __future__ import annotations

import numpy as np

from collage.errors import ModelError
from collage.frontend.messages import NUMBERS, ModelProto, TensorProto, is_external, parsed, refer, type_name
from collage.graph.dataflow import np_dtype
from collage.kernel.frames import Artifact, Framed
from collage.kernel.model_artifact import apart, model_artifact, protobuf, weights_of

TOO_LARGE = "the weights exceed the 2 GiB that one ONNX protobuf can hold"
_MOST_BYTES = (1 << 31) - 1
_LARGE_WEIGHT = 16 << 10
"""Smaller weights stay in the message: some of them are read as axes, shapes and indices."""


def in_one_piece(model: bytes | Framed) -> bytes:
    """The protobuf of an artifact of a model, with all weights in it. Raises ModelError beyond 2 GiB."""
    if not isinstance(model, Framed):
        return model
    found = weights_of(model)
    if sum(each.nbytes for each in found.values()) + len(protobuf(model)) > _MOST_BYTES:
        raise ModelError(TOO_LARGE)
    proto = parsed(protobuf(model))
    for tensor in proto.graph.initializer:
        if is_external(tensor):
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = found[tensor.name].tobytes()
    return bytes(proto.SerializeToString())


def at_addresses(model: Framed) -> bytes:
    """The protobuf of an artifact, which has the addresses of the weights as ONNX Runtime and OpenVINO read them.

    The artifact must live until the model has been read.
    """
    proto = parsed(protobuf(model))
    found = weights_of(model)
    for tensor in proto.graph.initializer:
        if is_external(tensor):
            array = found[tensor.name]
            refer(tensor, "*/_ORT_MEM_ADDR_/*", array.ctypes.data, array.nbytes)
    return bytes(proto.SerializeToString())


def input_names(model: Artifact) -> list[str]:
    """The names of the model's inputs that are no initializers."""
    return names_of_inputs(parsed(protobuf(model_artifact(model))))


def names_of_inputs(model: ModelProto) -> list[str]:
    """The same of a parsed model."""
    weights = {each.name for each in model.graph.initializer}
    return [each.name for each in model.graph.input if each.name not in weights]


def set_apart(model: bytes | Framed) -> bytes | Framed:
    """The artifact with large weights as arrays of their own, so that equal ones of a file are stored once.

    It is the artifact itself if that is so already, or there are none.
    """
    if isinstance(model, Framed) or len(model) < _LARGE_WEIGHT:
        return model
    proto = parsed(model)
    read = {name for node in proto.graph.node for name in node.input}
    described: list[tuple[str, str, list[int]]] = []
    arrays: list[bytes] = []
    for tensor in proto.graph.initializer:
        if tensor.name in read and _is_large(tensor):
            data = tensor.raw_data
            described.append((tensor.name, type_name(tensor.data_type), list(tensor.dims)))
            arrays.append(data)
            tensor.ClearField("raw_data")
            refer(tensor, "apart", 0, len(data))
    return apart(proto.SerializeToString(deterministic=True), described, arrays) if arrays else model


def _is_large(tensor: TensorProto) -> bool:
    """Whether the tensor has many raw numbers of a type that numpy has."""
    data = len(tensor.raw_data)
    if data < _LARGE_WEIGHT or tensor.data_type not in NUMBERS.values() or tensor.data_type == NUMBERS["string"]:
        return False
    return data == int(np.prod(tensor.dims, dtype=np.int64)) * np_dtype(type_name(tensor.data_type)).itemsize
