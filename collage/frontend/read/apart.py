"""Models whose large weights are in files: how they get there, and how such models are saved, read and copied."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import onnx
from google.protobuf.message import EncodeError
from onnx import TensorProto, numpy_helper

from collage.errors import CollageError
from collage.frontend.read.external_data import external_bytes, link_or_copy
from collage.frontend.read.proto_size import about_bytes, bytes_of, elements, itemsize, tensors
from collage.frontend.read.weights import (
    SUFFIX,
    WeightFiles,
    array_of,
    borrow,
    fill,
    fill_with,
    is_apart,
    is_external,
    owner_of,
    path_of,
    place_of,
    refer,
)
from collage.graph.dataflow import Array
from collage.kernel.buffers import ALIGNMENT

LARGE_MODEL = 64 << 20
"""Weights of a model with this many bytes of them or more are moved to a file."""
LARGE_WEIGHT = 16 << 10
"""Smaller ones stay in the model. Some of them are read as axes, shapes and indices."""
MOST_INSIDE = 2_000_000_000
"""With more bytes inside, weights apart are of no use: the protobuf is too large all the same."""

_PLAIN = frozenset(
    TensorProto.DataType.Value(name)
    for name in "FLOAT FLOAT16 DOUBLE INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL".split()
)
"""The types that numpy has by itself. Weights of others stay in the model."""


def weight_files(model: onnx.ModelProto) -> WeightFiles | None:
    """The files that belong with the model's; None if all weights are in the model, or its files are borrowed."""
    return next((owner_of(tensor) for tensor in model.graph.initializer if is_apart(tensor)), None)


def has_files(model: onnx.ModelProto) -> bool:
    """Whether there are weights that are not in the model itself."""
    return any(map(is_apart, model.graph.initializer))


def moved_out(model: onnx.ModelProto, files: WeightFiles, folders: Sequence[Path] = ()) -> onnx.ModelProto:
    """The model with its large weights in a file of ``files``; the model itself if these are few.

    One of the ``folders`` has the model's external data, if it has any; a model whose data nobody has is as it was.
    Raises CollageError for a full disk, and OSError and ValueError for data that is not there.
    """
    if about_bytes(model) < LARGE_MODEL or (not folders and any(map(is_external, tensors(model)))):
        return model
    if about_bytes(model) - sum(map(bytes_of, filter(_can_move, model.graph.initializer))) > MOST_INSIDE:
        return model
    with _room():
        path = files.new()
        with path.open("wb") as file:
            found = _bare(model, _can_move, lambda tensor: _written(tensor, file, path.name, folders))
    files.add(path)
    return found


def inner_bytes(model: onnx.ModelProto) -> int:
    """The bytes of the weights and constants that are in the model itself."""
    return sum(bytes_of(tensor) for tensor in tensors(model) if not is_apart(tensor))


def load_beside(model: onnx.ModelProto, folders: Sequence[Path]) -> None:
    """Read the weights whose numbers are in files in one of the folders that are not Collage's, in place.

    Raises OSError and ValueError for data that is not there.
    """
    for tensor in tensors(model):
        if is_external(tensor) and not is_apart(tensor):
            fill_with(tensor, external_bytes(tensor, folders))


def adopted(model: onnx.ModelProto, folder: Path, files: WeightFiles) -> onnx.ModelProto:
    """A model that a library has written to ``folder`` with external data, which is moved to ``files``, in place."""
    moved: dict[str, str] = {}
    own = len(model.graph.initializer)
    for index, tensor in enumerate(tensors(model)):  # then come those of branches and loops
        if is_external(tensor) and (index >= own or not _can_move(tensor)):
            fill_with(tensor, external_bytes(tensor, [folder]))
    for tensor in model.graph.initializer:
        if is_external(tensor):
            name, offset, length = place_of(tensor)
            if name not in moved:
                path = files.new()
                os.replace(folder / name, path)
                files.add(path)
                moved[name] = path.name
            refer(tensor, moved[name], offset, length)
    return model


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all weights in it: a copy where some are in files."""
    if not has_files(model):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        fill(tensor)
    return copy


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model whose large weights are in no file: their types are known, and their numbers are not."""
    return _bare(model, _is_large, lambda tensor: _referring(tensor, "elsewhere", 0, 0))


def with_changed(model: onnx.ModelProto, change: Callable[[Array], Array], files: WeightFiles) -> onnx.ModelProto:
    """A copy of the model with other weights: ``change`` is called with each of float32 and float16.

    Those of weights that are in files are in a file of ``files``. Raises CollageError for a full disk.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    path = files.new() if has_files(model) else Path(os.devnull)
    with _room(), path.open("wb") as file:
        for tensor in copy.graph.initializer:
            if tensor.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
                continue
            changed = change(array_of(tensor))
            if is_apart(tensor):
                at = _write(file, changed.data)
                refer(tensor, path.name, at, changed.nbytes)
            else:
                tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    if has_files(model):
        files.add(path)
    return copy


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Write the model to a file. Its weights are in the same file, or in files beside it.

    They are beside it where they are in files now, which are linked and not copied, and where the protobuf would have
    2 GiB or more. The model is not changed.
    """
    data = _serialised(model)
    if has_files(model) and not data:  # what is in the model itself is too large
        model = filled(model)
        data = _serialised(model)
    if not data:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        onnx.save_model(copy, str(path), save_as_external_data=True, location="model.bin")
        return
    for source in {path_of(tensor) for tensor in model.graph.initializer if is_apart(tensor)}:
        target = path.parent / source.name
        if not target.exists():
            link_or_copy(source, target)
    path.write_bytes(data)


def check_model(model: onnx.ModelProto) -> None:
    """Raises onnx's ValidationError where its checker finds fault with the model."""
    if not has_files(model):
        onnx.checker.check_model(model)
        return
    # The checker refuses files that have several names. So weights in files are inputs here.
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    graph = bare.graph
    del graph.initializer[:]
    graph.initializer.extend(tensor for tensor in model.graph.initializer if not is_apart(tensor))
    inputs = {info.name for info in graph.input}
    for tensor in model.graph.initializer:
        if is_apart(tensor) and tensor.name not in inputs:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(info)
    onnx.checker.check_model(bare)


def load_model(path: Path) -> onnx.ModelProto:
    """The model that ``save_model`` has written, with its weights where they are."""
    model = onnx.load(str(path), load_external_data=False)
    names = {place_of(tensor)[0] for tensor in model.graph.initializer if is_external(tensor)}
    if any(not name.endswith(SUFFIX) for name in names):
        return onnx.load(str(path))
    for name in names:
        borrow(path.parent / name)
    return model


def _serialised(model: onnx.ModelProto) -> bytes:
    """The model's protobuf; b"" if it is too large. Asking for the size first would take as long again."""
    try:
        data: bytes = model.SerializeToString()
    except (EncodeError, ValueError):
        return b""
    return data


def _is_large(tensor: TensorProto) -> bool:
    return tensor.data_type != TensorProto.STRING and bytes_of(tensor) >= LARGE_WEIGHT


def _bare(
    model: onnx.ModelProto,
    taken: Callable[[TensorProto], bool],
    replaced: Callable[[TensorProto], TensorProto],
) -> onnx.ModelProto:
    """A copy of the model with others in the place of the weights that are ``taken``, whose numbers are not copied."""
    found = onnx.ModelProto()
    _copy_fields(model, found, "graph")
    _copy_fields(model.graph, found.graph, "initializer")
    for tensor in model.graph.initializer:
        found.graph.initializer.append(replaced(tensor) if taken(tensor) else tensor)
    return found


def _copy_fields(source: Any, target: Any, left_out: str) -> None:
    """Copy all fields of a message but one."""
    for field, value in source.ListFields():
        if field.name == left_out:
            continue
        if hasattr(value, "extend"):  # it is repeated
            getattr(target, field.name).extend(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


def _can_move(tensor: TensorProto) -> bool:
    """Whether the tensor is large, and has its elements as numpy would have them."""
    return tensor.data_type in _PLAIN and bytes_of(tensor) >= LARGE_WEIGHT


def _written(tensor: TensorProto, file: IO[bytes], name: str, folders: Sequence[Path]) -> TensorProto:
    """Write the tensor's numbers to the file of that name, and return a tensor that refers to them."""
    data = tensor.raw_data
    if is_external(tensor):
        data = external_bytes(tensor, folders)
    elif not tensor.HasField("raw_data"):
        try:
            data = numpy_helper.to_array(tensor).tobytes()
        except ValueError:
            return tensor  # its numbers do not fit its shape, as those below, and engines will say so
    if len(data) != elements(tensor) * itemsize(tensor.data_type):
        if not is_external(tensor):
            return tensor
        raise ValueError(
            f"{tensor.name} has {len(data)} bytes of data, which its shape does not explain. Export it again"
        )
    return _referring(tensor, name, _write(file, data), len(data))


def _write(file: IO[bytes], data: bytes | memoryview) -> int:
    """Write the bytes from the next boundary on, and return where that is."""
    file.write(bytes(-file.tell() % ALIGNMENT))
    at = file.tell()
    file.write(data)
    return at


@contextmanager
def _room() -> Iterator[None]:
    """Raises CollageError, which names the way out, where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CollageError(
            f"the weights of the model cannot be written to {tempfile.gettempdir()}: {error.strerror}. Make room "
            "there, or name a roomier folder with TMPDIR."
        ) from error


def _referring(tensor: TensorProto, name: str, offset: int, length: int) -> TensorProto:
    found = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    refer(found, name, offset, length)
    return found
