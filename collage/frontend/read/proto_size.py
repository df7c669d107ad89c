"""Sizes of models, told from their weights: protobuf itself knows a size only when it has serialised everything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import onnx
from google.protobuf.message import EncodeError
from onnx import TensorProto

from collage.frontend.read.scopes import all_nodes

_MAX_BYTES = 2**31 - 1
"""A protobuf of this size or more cannot be serialised."""

_OF_FEW_BITS = re.compile("(U?INT|FLOAT)[246]($|E)")
"""The types several of whose elements share a byte."""

_NETWORK_KEY, _MOST_DIGITS = "collage.network_bytes", 18

_DOUBT = 0.1
"""The share by which the size of a model may differ from that of its weights, if they are large."""


def about_bytes(model: onnx.ModelProto) -> int:
    """The bytes of the numbers of all weights and constants, also of those in files."""
    return sum(bytes_of(each) for each in tensors(model))


def is_serialisable(model: onnx.ModelProto) -> bool:
    """Whether the model, with all its weights, is smaller than the 2 GiB that one protobuf can hold."""
    about = about_bytes(model)
    if abs(about - _MAX_BYTES) > _DOUBT * _MAX_BYTES:
        return about < _MAX_BYTES
    apart = sum(bytes_of(each) for each in model.graph.initializer if each.data_location == TensorProto.EXTERNAL)
    try:
        return bool(model.ByteSize() + apart < _MAX_BYTES)
    except EncodeError:  # some versions of protobuf serialise the model for its size
        return False


def tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """All weights and constants of the model, also of its branches and loops."""
    yield from model.graph.initializer
    for node in all_nodes(model.graph):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from attribute.g.initializer


def elements(tensor: TensorProto) -> int:
    """The number of the tensor's elements."""
    count = 1
    for extent in tensor.dims:
        count *= extent
    return count


@cache
def itemsize(data_type: int) -> int:
    """The bytes of an element, in a model and in numpy; 0 for text, elements of less than a byte, and unknown types."""
    name = TensorProto.DataType.Name(data_type) if data_type in TensorProto.DataType.values() else ""
    if not name or name in ("STRING", "UNDEFINED") or _OF_FEW_BITS.match(name):
        return 0
    return int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize)


def bytes_of(tensor: TensorProto) -> int:
    """The bytes of the tensor's numbers."""
    size = itemsize(tensor.data_type)
    apart = tensor.data_location == TensorProto.EXTERNAL
    if size and (apart or tensor.HasField("raw_data")):
        return elements(tensor) * size
    return int(tensor.ByteSize())  # numbers of varying lengths, text, or a type of a newer ONNX


def note_network(model: onnx.ModelProto, weight_bytes: int) -> None:
    """Note in the model's metadata that it is a part of a network with so many bytes of weights.

    They say whether the cache holds the model's weights from one run to the next (see ``measure/timing``).
    """
    model.metadata_props.add(key=_NETWORK_KEY, value=str(weight_bytes))


def network_bytes(model: onnx.ModelProto) -> int:
    """The bytes of weights of the network that the model is a part of, 0 if it names none."""
    named = [each.value for each in model.metadata_props if each.key == _NETWORK_KEY]
    known = bool(named) and named[0].isascii() and named[0].isdigit() and len(named[0]) <= _MOST_DIGITS
    return int(named[0]) if known else 0
