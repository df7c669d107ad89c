"""Sizes of models, told from their weights: protobuf itself knows a size only when it has serialised everything."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from google.protobuf.message import EncodeError
from onnx import TensorProto

from collage.frontend.scopes import all_nodes

_MAX_BYTES = 2**31 - 1
"""A protobuf of this size or more cannot be serialised."""

_DOUBT = 0.1
"""The share by which the size of a model may differ from that of its weights, if they are large."""


def about_bytes(model: onnx.ModelProto) -> int:
    """The bytes of the numbers of all weights and constants in the model, without those in files beside it."""
    return sum(_bytes_of(each) for each in _tensors(model))


def is_serialisable(model: onnx.ModelProto) -> bool:
    """Whether the model is smaller than the 2 GiB that one protobuf can hold."""
    about = about_bytes(model)
    if abs(about - _MAX_BYTES) > _DOUBT * _MAX_BYTES:
        return about < _MAX_BYTES
    try:
        return bool(model.ByteSize() < _MAX_BYTES)
    except EncodeError:  # some versions of protobuf serialise the model for its size
        return False


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in all_nodes(model.graph):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from attribute.g.initializer


def _bytes_of(tensor: TensorProto) -> int:
    if tensor.data_location == TensorProto.EXTERNAL:
        return 0
    if not tensor.HasField("raw_data"):  # numbers of varying lengths, or text
        return int(tensor.ByteSize())
    count = 1
    for extent in tensor.dims:
        count *= extent
    try:
        return count * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except KeyError:  # a type of a newer ONNX
        return int(tensor.ByteSize())
