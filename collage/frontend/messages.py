"""ONNX's messages by protobuf alone. Running a module does not need the package onnx, which compiles need.

The classes are apart from those of onnx: a message of one of them fits into no field of the other. Fields that are not
named here are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from collage.graph.dataflow import Array, np_dtype

_FIELDS = """
ModelProto: ir_version 1 int64, opset_import 8 *OperatorSetIdProto, graph 7 GraphProto, functions 25 *FunctionProto,
  metadata_props 14 *StringStringEntryProto
GraphProto: node 1 *NodeProto, name 2 string, initializer 5 *TensorProto, sparse_initializer 15 *SparseTensorProto,
  input 11 *ValueInfoProto, output 12 *ValueInfoProto, value_info 13 *ValueInfoProto
NodeProto: input 1 *string, output 2 *string, name 3 string, op_type 4 string, domain 7 string,
  attribute 5 *AttributeProto
AttributeProto: name 1 string, ref_attr_name 21 string, type 20 int32, f 2 float, i 3 int64, s 4 bytes,
  t 5 TensorProto, g 6 GraphProto, floats 7 *float, ints 8 *int64, strings 9 *bytes, tensors 10 *TensorProto,
  graphs 11 *GraphProto
TensorProto: dims 1 *int64, data_type 2 int32, float_data 4 *float, int32_data 5 *int32, string_data 6 *bytes,
  int64_data 7 *int64, name 8 string, raw_data 9 bytes, external_data 13 *StringStringEntryProto,
  data_location 14 int32, double_data 10 *double, uint64_data 11 *uint64
SparseTensorProto: values 1 TensorProto, indices 2 TensorProto, dims 3 *int64
ValueInfoProto: name 1 string, type 2 TypeProto
TypeProto: tensor_type 1 Tensor, sequence_type 4 Sequence, map_type 5 Map, optional_type 9 Sequence
Tensor: elem_type 1 int32, shape 2 TensorShapeProto
Sequence: elem_type 1 TypeProto
Map: key_type 1 int32, value_type 2 TypeProto
TensorShapeProto: dim 1 *Dimension
Dimension: dim_value 1 int64, dim_param 2 string
StringStringEntryProto: key 1 string, value 2 string
OperatorSetIdProto: domain 1 string, version 2 int64
FunctionProto: name 1 string, input 4 *string, output 5 *string, node 7 *NodeProto, domain 10 string,
  opset_import 9 *OperatorSetIdProto
"""
"""The messages, and the names, numbers and types of their fields; a star is for a field that is repeated."""

_ONE_OF = {"TypeProto", "Dimension"}
"""Messages of whose fields one is set."""

DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
}
"""Names of element types by their numbers in ONNX; those that numpy lacks are not here."""
NUMBERS = {name: number for number, name in DTYPES.items()}
"""Numbers of element types by their names."""
FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS = range(1, 9)
"""Kinds of attributes."""
_EXTERNAL = 1
_PLACES = {"float32": "float_data", "float64": "double_data", "int64": "int64_data", "uint32": "uint64_data"}
"""Fields of numbers that are not raw, by dtype; all other dtypes have theirs in int32_data or uint64_data."""


def _classes() -> dict[str, Any]:
    """The messages' classes, in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(name="collage/messages.proto", package="collage.onnx")
    kinds = descriptor_pb2.FieldDescriptorProto
    blocks = _FIELDS.replace(",\n  ", ", ").strip().splitlines()
    for block in blocks:
        name, _, fields = block.partition(": ")
        message = file.message_type.add(name=name)
        if name in _ONE_OF:
            message.oneof_decl.add(name="value")
        for each in fields.split(", "):
            field, number, kind = each.split()
            many, kind = kind.startswith("*"), kind.lstrip("*")
            label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
            made = message.field.add(name=field, number=int(number), label=label)
            if kind[0].isupper():
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".collage.onnx.{kind}"
            else:
                made.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if name in _ONE_OF:
                made.oneof_index = 0
            if field.endswith("_data") and kind not in ("bytes", "StringStringEntryProto"):
                made.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [block.partition(":")[0] for block in blocks]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"collage.onnx.{name}")) for name in names}


if TYPE_CHECKING:
    from onnx import GraphProto as GraphProto
    from onnx import ModelProto as ModelProto
    from onnx import NodeProto as NodeProto
    from onnx import TensorProto as TensorProto
    from onnx import ValueInfoProto as ValueInfoProto
else:
    _made = _classes()
    GraphProto, ModelProto, NodeProto = _made["GraphProto"], _made["ModelProto"], _made["NodeProto"]
    TensorProto, ValueInfoProto = _made["TensorProto"], _made["ValueInfoProto"]


def parsed(model: Any) -> ModelProto:
    """A model of these classes, from bytes or from a message of onnx. Raises ValueError for what is no model."""
    data = model if isinstance(model, (bytes, bytearray, memoryview)) else model.SerializeToString()
    try:
        found: ModelProto = ModelProto.FromString(bytes(data))
        return found
    except Exception as error:  # protobuf's DecodeError
        raise ValueError("it is no ONNX model") from error


def type_name(number: int) -> str:
    """The name of an element type, or its number in words if numpy lacks it."""
    return DTYPES.get(number, f"number {number} of ONNX's types")


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's numbers are not in the message."""
    return bool(tensor.data_location == _EXTERNAL)


def refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Let the tensor have its numbers at a place elsewhere."""
    del tensor.external_data[:]
    tensor.data_location = _EXTERNAL  # type: ignore[assignment]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def to_array(tensor: TensorProto) -> Array:
    """The tensor's array; strings are objects. Raises ValueError for a type that numpy lacks, and for external data."""
    if tensor.data_type not in DTYPES or is_external(tensor):
        raise ValueError(f"{tensor.name or 'a tensor'} is of {type_name(tensor.data_type)}, or its numbers are apart")
    shape, name = tuple(tensor.dims), DTYPES[tensor.data_type]
    if name == "string":
        texts = [each.decode(errors="surrogateescape") for each in tensor.string_data]
        return np.array(texts, object).reshape(shape)
    dtype = np_dtype(name)
    if tensor.HasField("raw_data"):
        return np.frombuffer(tensor.raw_data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    numbers = getattr(tensor, _PLACES.get(name, "uint64_data" if name == "uint64" else "int32_data"))
    if name == "float16":
        return np.array(numbers, np.uint16).view(np.float16).reshape(shape)
    return np.array(numbers, dtype).reshape(shape)


def from_array(array: Array, name: str) -> TensorProto:
    """A tensor of numbers."""
    array = np.ascontiguousarray(array)
    return TensorProto(name=name, dims=array.shape, data_type=NUMBERS[array.dtype.name], raw_data=array.tobytes())


def attribute(node: NodeProto, name: str, usual: Any = None) -> Any:
    """The value of an attribute, or ``usual`` if the node has none of that name."""
    return next((attribute_value(each) for each in node.attribute if each.name == name), usual)


def attribute_value(given: Any) -> Any:
    """The value of an attribute: lists of numbers and tensors as arrays, and bytes as strings."""
    kind = given.type
    if kind == FLOATS:
        return np.array(given.floats, np.float32)
    if kind == INTS:
        return np.array(given.ints, np.int64)
    if kind == STRINGS:
        return [each.decode() for each in given.strings]
    if kind == STRING:
        return given.s.decode()
    if kind == TENSOR:
        return to_array(given.t)
    if kind == FLOAT:
        return given.f
    if kind == INT:
        return given.i
    if kind == GRAPH:
        return given.g
    raise ValueError(f"the attribute {given.name} is of a kind that is not known")


def node(op_type: str, inputs: list[str], outputs: list[str], domain: str, **numbers: Any) -> NodeProto:
    """A node whose attributes are integers, or lists of them."""
    made = NodeProto(op_type=op_type, input=inputs, output=outputs, domain=domain)
    for name, value in numbers.items():
        if isinstance(value, int):
            made.attribute.add(name=name, type=INT, i=value)
        else:
            made.attribute.add(name=name, type=INTS, ints=[*map(int, value)])
    return made


def tensor_info(name: str, number: int, shape: tuple[int | str, ...]) -> ValueInfoProto:
    """The type of a value that is a tensor: the number of its element type, and its extents or their names."""
    info = ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = number
    info.type.tensor_type.shape.SetInParent()
    for extent in shape:
        dim = info.type.tensor_type.shape.dim.add()
        if isinstance(extent, int):
            dim.dim_value = extent
        else:
            dim.dim_param = extent
    return info
