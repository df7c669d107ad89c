"""Weights of ONNX models in files that all processes of a compile map into memory.

Protobuf copies all weights whenever a model is copied, read, written or hashed. So large models have them in files (see
``apart``): an initializer refers to a file, as ONNX's external data does. Always read it by ``array_of``.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from collage.core.mapped_file import mapped_file
from collage.core.temporary import TemporaryFolder
from collage.graph.dataflow import Array

SUFFIX = ".weights"
"""Names of such files end so."""

_known: dict[str, _File] = {}
"""The files by their names, which no two files share."""


class _File:
    """A file of weights, which is mapped when the first of them is read."""

    def __init__(self, path: Path, owner: WeightFiles | None) -> None:
        self.path = path
        self.owner = owner
        self._map: Any = None

    def view(self, offset: int, length: int) -> Array:
        """The bytes there, which keep the map alive. Raises ValueError if the file ends before."""
        if self._map is None:
            self._map = mapped_file(self.path)
        if not 0 <= offset <= offset + length <= len(self._map):
            raise ValueError(f"{self.path.name} has no {length} bytes at {offset}")
        found: Array = np.frombuffer(self._map, np.uint8)[offset : offset + length]
        return found


class WeightFiles:
    """The files of the models of one compile, in a temporary folder. It is a context manager.

    Models whose weights are in them can be used until it is closed; arrays of ``array_of`` can be used after that.
    """

    def __init__(self) -> None:
        self._folder: TemporaryFolder | None = None
        self._names: list[str] = []

    def __enter__(self) -> WeightFiles:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files."""
        for name in self._names:
            _known.pop(name, None)
        self._names.clear()
        if self._folder is not None:
            self._folder.remove()

    def new(self) -> Path:
        """The path of a new file, which has to be written and then given to ``add``."""
        if self._folder is None:
            self._folder = TemporaryFolder("weights")
        return self._folder.path / f"collage-{uuid.uuid4().hex}{SUFFIX}"

    def add(self, path: Path) -> None:
        """Let initializers refer to a file by its name."""
        _known[path.name] = _File(path, self)
        self._names.append(path.name)


def is_external(tensor: TensorProto) -> bool:
    """Whether the tensor says that its numbers are in a file, be it one of these or not."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def is_apart(tensor: TensorProto) -> bool:
    """Whether the tensor's numbers are in one of these files."""
    return is_external(tensor) and any(each.key == "location" and each.value in _known for each in tensor.external_data)


def array_of(tensor: TensorProto) -> Array:
    """The tensor's array. It is read-only, and no copy, where it is in a file."""
    if not is_apart(tensor):
        return numpy_helper.to_array(tensor)
    array = mapped(tensor)
    array.flags.writeable = False
    return array


def mapped(tensor: TensorProto) -> Array:
    """The array of a tensor in a file, as memory that says that it can be written. It cannot.

    It is for libraries that take no memory which says otherwise.
    """
    name, offset, length = place_of(tensor)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    count = int(np.prod(list(tensor.dims), dtype=np.int64))
    if length != count * dtype.itemsize:
        raise ValueError(f"{tensor.name} has {length} bytes in its file, not {count} x {dtype.itemsize}")
    return _known[name].view(offset, length).view(dtype).reshape(tuple(tensor.dims))


def fill(tensor: TensorProto) -> None:
    """Put the numbers into the tensor, in place, where they are in a file."""
    if is_apart(tensor):
        fill_with(tensor, array_of(tensor).tobytes())


def fill_with(tensor: TensorProto, data: bytes) -> None:
    """Put these numbers into a tensor, in place, whose numbers are elsewhere."""
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = data


def refer(tensor: TensorProto, name: str, offset: int, length: int) -> None:
    """Let the tensor have its numbers at a place in a file of that name."""
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def place_of(tensor: TensorProto) -> tuple[str, int, int]:
    """The name of the tensor's file, where its numbers begin there, and their bytes."""
    entries = {each.key: each.value for each in tensor.external_data}
    return entries["location"], int(entries.get("offset", 0)), int(entries.get("length", 0))


def forget_borrowed() -> None:
    """Forget the files of models that other processes have written. The models cannot be used after that."""
    for name in [name for name, file in _known.items() if file.owner is None]:
        del _known[name]


def owner_of(tensor: TensorProto) -> WeightFiles | None:
    """The files that belong with that of a tensor; None if it is borrowed."""
    return _known[place_of(tensor)[0]].owner


def path_of(tensor: TensorProto) -> Path:
    """The file of a tensor."""
    return _known[place_of(tensor)[0]].path


def borrow(path: Path) -> None:
    """Let initializers refer to a file of another process by its name."""
    if path.name not in _known:
        _known[path.name] = _File(path, None)


def small_array(tensor: onnx.TensorProto, most: int) -> Array | None:
    """The array of at most so many elements; None if it has more, or is in a file that is not open."""
    if np.prod(tensor.dims, dtype=np.int64) > most or not (is_apart(tensor) or not is_external(tensor)):
        return None
    return array_of(tensor)
