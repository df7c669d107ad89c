"""Reading and checking an ONNX model, given as a path (with its external data), as bytes or as a ``ModelProto``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, helper, numpy_helper

from collage.core.library_text import library_text
from collage.errors import ModelError
from collage.frontend.read.apart import check_model, filled, inner_bytes, load_beside, moved_out, weight_files
from collage.frontend.read.external_data import data_folders
from collage.frontend.read.model_path import check_model_path
from collage.frontend.read.old_sets import to_set_7
from collage.frontend.read.scopes import STANDARD, all_graphs, all_nodes, reads, rename
from collage.frontend.read.shapes import model_inputs
from collage.frontend.read.weights import WeightFiles
from collage.frontend.read.widen import TYPE_ATTRIBUTES, widen
from collage.frontend.rewrite.recurrent import batches_second

_NARROW, _WIDE = TensorProto.BFLOAT16, TensorProto.FLOAT
_INNER = "__in_float32"
"""What is appended to the names of inputs and outputs inside of the model."""
_MOVES = frozenset(
    "Cast CastLike Constant ConstantOfShape Flatten Identity Reshape Squeeze Transpose Unsqueeze".split()
)


def computes_in_bfloat16(model: onnx.ModelProto) -> bool:
    """Whether an operator reads or makes bfloat16, and does more than to cast or to move it."""
    narrow: set[str] = set()
    for graph in all_graphs(model.graph):
        narrow.update(each.name for each in graph.initializer if each.data_type == _NARROW)
        narrow.update(each.name for each in graph.input if each.type.tensor_type.elem_type == _NARROW)
    for node in all_nodes(model.graph):
        given = any(_is_narrow(each) for each in node.attribute)
        read = [name in narrow for name in reads(node)]
        if node.op_type not in _MOVES and (given or any(read)):
            return True
        # A cast makes what its attribute says, or what its second input is, and others what they read.
        if given or (node.op_type != "Cast" and any(read[node.op_type == "CastLike" :])):
            narrow.update(node.output)
    return False


def in_float32(model: onnx.ModelProto) -> None:
    """Let a model compute in float32 where it computes in bfloat16, in place; its inputs and outputs stay bfloat16.

    ONNX Runtime has no kernels for bfloat16 on CPUs, so there would be no reference.
    """
    graph = model.graph
    given = {each.name for each in graph.input}
    ends = [each for each in (*model_inputs(model), *graph.output) if each.type.tensor_type.elem_type == _NARROW]
    inner = {each.name: each.name + _INNER for each in ends}
    inputs = [name for name in inner if name in given]
    outputs = [name for name in inner if name not in given]
    widen(model, (_NARROW,), _WIDE)
    for info in ends:
        info.type.tensor_type.elem_type = _NARROW
    rename(graph.node, inner)
    for tensor in graph.initializer:
        tensor.name = inner.get(tensor.name, tensor.name)
    for each in all_graphs(graph):
        del each.value_info[:]
    for name in inputs[::-1]:
        graph.node.insert(0, helper.make_node("Cast", [name], [inner[name]], to=_WIDE))
    graph.node.extend(helper.make_node("Cast", [inner[name]], [name], to=_NARROW) for name in outputs)


def _is_narrow(attribute: onnx.AttributeProto) -> bool:
    if attribute.type == onnx.AttributeProto.TENSOR:
        return bool(attribute.t.data_type == _NARROW)
    return attribute.name in TYPE_ATTRIBUTES and attribute.i == _NARROW


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
    fields = [message.DESCRIPTOR.fields_by_name[each] for each in _PAYLOAD] if tensor else message.DESCRIPTOR.fields
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


log = logging.getLogger(__name__)

_CHECKED_BELOW_BYTES = 1 << 28
"""Larger models whose weights are in them are not checked: the checker serialises the model, which takes seconds."""

_NEWEST_OPSET = 22
"""A newer operator set becomes this one, or the oldest in which the model's operators mean the same. Engines support
new operator sets late."""

_OLDEST_OPSET = 7
"""Models of older operator sets are converted, since ONNX Runtime does not implement these."""

_IR_VERSION = 10
"""The IR version that is written into newer models. Engines refuse a number above their own. What has been added since
(annotations for several devices, types of few bits) they read or refuse whatever the number is."""

ModelSource: TypeAlias = "str | Path | bytes | onnx.ModelProto"


def load_onnx(source: ModelSource, files: WeightFiles | None = None) -> onnx.ModelProto:
    """The checked model, weights included, in an operator set that engines take. A given ModelProto is copied.

    A model that computes in bfloat16 computes in float32 then (see ``bfloat16``). Where ``files`` are given, the
    weights of a large model go there (see ``weights``). Raises ModelError, which names the file and the way out, when
    the file is missing, truncated or no ONNX model, or lacks its external data.
    """
    model = as_written(source, files)
    model = _checked(model, _called(source))
    if computes_in_bfloat16(model):
        in_float32(model)
        model = model if files is None else moved_out(model, files)
    return model


def as_written(source: ModelSource, files: WeightFiles | None = None) -> onnx.ModelProto:
    """The model as its author wrote it, weights included. A given ModelProto is copied.

    Where ``files`` are given, the weights of a large model go there. Raises ModelError for what is no ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        check_text(source, "the given ModelProto")
        model = source if files is None else moved_out(source, files)
        if model is source:
            model = onnx.ModelProto()
            model.CopyFrom(source)
        return model
    if isinstance(source, bytes):
        model = _parse(source, "the given bytes")
        check_text(model, "the given bytes")
        return model if files is None else moved_out(model, files)
    path = Path(source)
    try:
        check_model_path(path)
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}.") from error
    model = _parse(data, str(path))
    del data  # a copy of all weights
    check_text(model, str(path))
    folders = data_folders(path)
    try:
        if files is not None:
            model = moved_out(model, files, folders)
        load_beside(model, folders)
    except (OSError, ValueError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        raise ModelError(f"the weights beside {path} cannot be read: {text}.") from error
    return model


def _parse(data: bytes, name: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{name} is empty, not an ONNX model.")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise ModelError(
            f"{name} is no ONNX model, or is cut short: its protobuf does not parse. Export or download it again."
        ) from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError(f"{name} parses but holds no ONNX graph. Is it an ONNX model?")
    return model


def _called(source: ModelSource) -> str:
    """The source in messages. The text of a model would be that of all its weights."""
    if isinstance(source, onnx.ModelProto):
        return "the given ModelProto"
    return "the given bytes" if isinstance(source, bytes) else str(source)


def _checked(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with a version and an operator set that engines take; ``model`` is changed in place."""
    if not model.graph.output:
        raise ModelError(f"{name} has no outputs, so there is nothing to compute. Export it again.")
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if not 0 <= opset.version < 1 << 31:
            raise ModelError(f"{name} uses version {opset.version} of an operator set, which there cannot be.")
        if opset.domain in STANDARD and opset.version > newest:
            raise ModelError(
                f"{name} uses ONNX opset {opset.version}; the installed onnx knows up to {newest}. "
                "Upgrade onnx and onnxruntime, or export with an older opset."
            )
    _make_dense(model)
    batches_second(model)
    model.ir_version = min(model.ir_version, _IR_VERSION)
    model = settle_opset(model, name)
    if inner_bytes(model) > _CHECKED_BELOW_BYTES:
        return model
    try:
        check_model(model)
    except onnx.checker.ValidationError as error:
        # The checker is stricter than the engines, for example about a graph output without a shape. ONNX Runtime
        # loads the model next, and decides.
        log.warning("%s does not pass the ONNX checker: %s", name, library_text(error))
    return model


def _make_dense(model: onnx.ModelProto) -> None:
    """Replace the sparse initializers of the model and of its bodies, in place.

    Raises ModelError for one whose indices are outside of its extents, and for one that is too large when dense.
    """
    for graph in all_graphs(model.graph):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse))
        del graph.sparse_initializer[:]


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """The tensor; ``indices`` are positions in the flattened tensor, or one for each axis."""
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    try:
        found = np.zeros(tuple(sparse.dims), values.dtype)
        if indices.ndim == 1:
            found.reshape(-1)[indices] = values
        else:
            found[tuple(indices.T)] = values
    except (IndexError, MemoryError, ValueError) as error:
        raise ModelError(
            f"the sparse initializer {sparse.values.name} of the model does not fit its extents, or memory: {error}"
        ) from error
    return numpy_helper.from_array(found, sparse.values.name)


def settle_opset(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model in an operator set that engines take: not newer than its operators need, and not older than 7.

    A newer operator set is replaced in the caller's model, in place; an older one in a copy. ``name`` is for messages.
    """
    default = [opset for opset in model.opset_import if opset.domain in STANDARD]
    if len(default) != 1 or model.functions:
        return model
    (opset,) = default
    if opset.version < _OLDEST_OPSET:
        try:
            found = to_set_7(filled(model))
            files = weight_files(model)
            return found if files is None else moved_out(found, files)
        except Exception as error:  # onnx raises anything where it has no conversion
            log.info("%s stays in operator set %d: %s", name, opset.version, error)
            return model
    if opset.version > _NEWEST_OPSET:
        try:
            used = [
                onnx.defs.get_schema(node.op_type, opset.version, "").since_version
                for node in all_nodes(model.graph)
                if node.domain in STANDARD
            ]
        except onnx.defs.SchemaError:
            return model  # the set lacks an operator, and the engines will say so
        opset.version = max([_NEWEST_OPSET, *used])
    return model
