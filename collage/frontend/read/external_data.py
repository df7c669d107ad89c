"""External data of ONNX models: the files that it is in, and its numbers.

Caches and package managers keep such files as links: symbolic ones to another folder, or hard ones. onnx, ONNX Runtime
and OpenVINO refuse some of these, each of them others. A user who has made a link may have it followed; a model may not
lead out of its folder by itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx
from onnx import TensorProto

from collage.core.temporary import TemporaryFolder
from collage.frontend.read.proto_size import tensors


def data_folders(path: Path) -> tuple[Path, ...]:
    """The folders to look for a model's external data in, in this order: that of ``path``, then those it links to."""
    found = [path.parent]
    while path.is_symlink():
        path = path.parent / os.readlink(path)
        found.append(path.parent)
    return tuple(found)


def external_bytes(tensor: TensorProto, folders: Sequence[Path]) -> bytes:
    """The numbers of a tensor that has them in a file in one of the folders.

    Raises OSError and ValueError, which says what is wrong and the way out.
    """
    entries = {each.key: each.value for each in tensor.external_data}
    path = _data_file(entries.get("location", ""), folders)
    offset = int(entries.get("offset", 0))
    with path.open("rb") as file:
        available = os.fstat(file.fileno()).st_size - offset
        length = int(entries.get("length", available))
        if offset < 0 or not 0 <= length <= available:
            raise ValueError(
                f"{path} has no {max(length, 0)} bytes at {offset} for {tensor.name}. The external data file is cut "
                "short: export or download it again"
            )
        file.seek(offset)
        return file.read(length)


def link_or_copy(source: Path, target: Path) -> None:
    """Give the file a second name, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:  # a file system without such links, another one, or another user's file
        shutil.copyfile(source, target)


@contextmanager
def without_links(path: Path) -> Iterator[Path]:
    """The model at ``path``, or within the block one in a temporary folder, that libraries read with its data.

    It is another one if the model or its data is a symbolic link. Raises what ``external_bytes`` raises.
    """
    folders = data_folders(path)
    model = onnx.load(str(path), load_external_data=False)
    locations = {
        os.path.normpath(each.value)
        for tensor in tensors(model)
        if tensor.data_location == TensorProto.EXTERNAL
        for each in tensor.external_data
        if each.key == "location"
    }
    del model
    files = {location: _data_file(location, folders).resolve() for location in sorted(locations)}
    own = path.parent.resolve()
    if not files or (
        path.resolve() == own / path.name and all(file == own / location for location, file in files.items())
    ):
        yield path
        return
    with TemporaryFolder("model") as folder:
        for name, file in {**files, path.name: path.resolve()}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(file, folder / name)
        yield folder / path.name


def _data_file(location: str, folders: Sequence[Path]) -> Path:
    """The regular file, or link to one, at a model's location. Raises OSError and ValueError."""
    inner = os.path.normpath(location)
    if os.path.isabs(inner) or inner.split(os.sep)[0] == os.pardir:
        raise ValueError(f"the model names {location!r}, which is not in its folder. Export it with its data beside it")
    for folder in folders:
        path = folder / inner
        if path.is_file():
            return path
        if path.exists():
            raise ValueError(f"{path} is no regular file. Put the external data file there")
        if path.is_symlink():
            raise ValueError(f"{path} is a link to {os.readlink(path)}, which is not there. Get that file again")
    raise ValueError(f"there is no file {folders[0] / inner}. Put the external data file next to the model")
