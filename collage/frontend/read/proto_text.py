"""Text in ONNX models, such as names. It must be UTF-8, which protobuf does not check when it reads a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from collage.errors import ModelError

_PAYLOAD = frozenset({"name", "doc_string", "external_data"})
"""Fields of a tensor that are text or hold text. The other fields are its numbers."""


def check_text(model: onnx.ModelProto, name: str) -> None:
    """Raise ModelError for text that is no UTF-8; the message names the field. ``name`` names the model.

    String attributes of operators outside ONNX's own domains may hold any bytes: some engines keep code there.
    """
    for message, field, value in _texts(model):
        if isinstance(value, bytes):
            try:
                value.decode()
            except UnicodeDecodeError as error:
                kind = type(message).__name__.removesuffix("Proto").lower()
                raise ModelError(
                    f"{name} has text that is no UTF-8, in the {field} of a {kind}: the file is damaged, or its "
                    "exporter wrote bytes where text belongs. Export or download it again."
                ) from error


def _texts(message: Message) -> Iterator[tuple[Message, str, Any]]:
    """All text in the message, with the field that it is in. Text that is no UTF-8 comes as bytes."""
    tensor, node = isinstance(message, onnx.TensorProto), isinstance(message, onnx.NodeProto)
    foreign = node and message.domain not in ("", "ai.onnx", "ai.onnx.ml")
    fields = (
        [message.DESCRIPTOR.fields_by_name[each] for each in _PAYLOAD]
        if tensor
        else message.DESCRIPTOR.fields
    )
    for field in fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            value = getattr(message, field.name)
            if field.is_repeated:
                for each in value:
                    yield from _texts(each) if not foreign else _of_foreign(each)
            elif message.HasField(field.name):
                yield from _texts(value)
        elif field.type == FieldDescriptor.TYPE_STRING or _is_string_attribute(message, field.name):
            value = getattr(message, field.name)
            for each in value if field.is_repeated else (value,):
                yield message, field.name, each


def _is_string_attribute(message: Message, field: str) -> bool:
    return isinstance(message, onnx.AttributeProto) and field in ("s", "strings")


def _of_foreign(message: Message) -> Iterator[tuple[Message, str, Any]]:
    for of, field, value in _texts(message):
        if not _is_string_attribute(of, field):
            yield of, field, value
