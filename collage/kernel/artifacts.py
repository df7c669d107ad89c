"""The artifacts that were measured, on disk: what a module ships is what was built, checked and timed.

Thousands of candidates have the same weights. An artifact's file names the model's constants where their bytes stand in
it, other large parts are stored once for all artifacts, and the rest is in the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from collage.core.mapped_file import mapped_file
from collage.core.no_room import no_room
from collage.errors import MeasurementError
from collage.graph.dataflow import Array
from collage.kernel.buffers import as_bytes
from collage.kernel.frames import Artifact, Buffer, framed_of, parts_of

_LARGE = 64 << 10
"""A part of an artifact with this many bytes or more is not stored in the artifact's file."""
_HEAD = 64
"""A constant is looked for by this many of its first bytes."""
_TRIES = 8
"""A constant is compared at this many places with these first bytes at most."""
_SIZE = struct.Struct("<Q")

_Bytes = npt.NDArray[np.uint8]


class Artifacts:
    """Artifacts by key in a folder, for one model."""

    def __init__(self, folder: str | Path, constants: Mapping[int, Array], *, sharing: bool = True) -> None:
        """``constants`` are the arrays of the model's constants by value id. The folder need not exist yet.

        Equal large parts of several artifacts are stored once, unless that is no ``sharing`` folder: then an artifact
        that is taken out leaves nothing there.
        """
        self._folder = Path(folder)
        self._constants = constants
        self._sharing = sharing
        self._mapped: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def __contains__(self, key: str) -> bool:
        return (self._folder / key).exists()

    def keep(self, key: str, artifact: bytes, constants: Iterable[int] = ()) -> None:
        """Store an artifact under a key.

        ``constants`` are ids of the constants that may be in it. Raises MeasurementError for a full disk.
        """
        data = np.frombuffer(artifact, np.uint8)
        pieces: list[list[int | str]] = []
        inline: list[_Bytes] = []
        with no_room("kernels"):
            self._folder.mkdir(exist_ok=True)
            for begin, end, constant in _cut(artifact, data, self._wanted(constants)):
                if constant is not None:
                    pieces.append(["constant", constant, end - begin])
                elif end - begin >= _LARGE and self._sharing:
                    pieces.append(["part", self._put_part(data[begin:end]), end - begin])
                else:
                    pieces.append(["inline", "", end - begin])
                    inline.append(data[begin:end])
            head = json.dumps({"crc": zlib.crc32(artifact), "pieces": pieces}).encode()
            self._write(key, [_SIZE.pack(len(head)), head, *(each.data for each in inline)])

    def load(self, key: str) -> bytes:
        """The bytes of an artifact.

        Raises KeyError for a key without one, and MeasurementError where the bytes are not those that were stored.
        """
        return b"".join(self._pieces(key))

    def open(self, key: str) -> Artifact:
        """The artifact, whose large arrays are in the memory of the folder's files: it can be kept at no cost.

        Raises as ``load`` does.
        """
        pieces = self._pieces(key)
        with suppress(ValueError):  # a backend's own bytes may begin like a frame
            if (found := framed_of(pieces)) is not None:
                return found
        return b"".join(pieces)

    def _pieces(self, key: str) -> list[Buffer]:
        """The pieces of an artifact, one after the other. Large ones are mapped. Raises as ``load`` does."""
        try:
            file = (self._folder / key).read_bytes()
        except FileNotFoundError as error:
            raise KeyError(key) from error
        (size,) = _SIZE.unpack_from(file)
        at = _SIZE.size + size
        head = json.loads(file[_SIZE.size : at])
        found: list[Buffer] = []
        for kind, name, length in head["pieces"]:
            if kind == "constant":
                found.append(_bytes_of(self._constants[name]).data)
            elif kind == "part":
                found.append(self._part(name))
            else:
                found.append(file[at : at + length])
                at += length
        crc = 0
        for each in found:
            crc = zlib.crc32(each, crc)
        if crc != head["crc"]:
            raise MeasurementError(f"a kernel in {self._folder} does not have the bytes that were measured")
        return found

    def _part(self, name: str) -> memoryview:
        """The content of a file, which is mapped once for all artifacts that are in use."""
        found: Any = self._mapped.get(name)
        if found is None:
            found = self._mapped[name] = mapped_file(self._folder / name)
        return np.frombuffer(found, np.uint8).data

    def take(self, key: str) -> bytes | None:
        """The bytes of an artifact that is not needed in the folder any more; None where it is not there whole."""
        with suppress(KeyError, MeasurementError):
            artifact = self.load(key)
            with suppress(OSError):
                (self._folder / key).unlink()
            return artifact
        return None

    def _wanted(self, constants: Iterable[int]) -> dict[int, _Bytes]:
        large = {v: self._constants[v] for v in constants if self._constants[v].nbytes >= _LARGE}
        return {value: _bytes_of(array) for value, array in large.items()}

    def _put_part(self, data: _Bytes) -> str:
        name = f"part-{hashlib.sha256(data.data).hexdigest()}"
        if not (self._folder / name).exists():
            self._write(name, [data.data])
        return name

    def _write(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        partial = self._folder / f"{name}.{os.getpid()}.partial"  # several workers write here
        try:
            with partial.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
            os.replace(partial, self._folder / name)
        except BaseException:  # on a full disk it would take the room that others need
            partial.unlink(missing_ok=True)
            raise


def _bytes_of(array: Array) -> _Bytes:
    return as_bytes(np.ascontiguousarray(array))


def _cut(artifact: bytes, data: _Bytes, constants: Mapping[int, _Bytes]) -> Iterable[tuple[int, int, int | None]]:
    """Pieces of the artifact in order: where each begins and ends, and which constant it is, or None."""
    marked = _arrays(artifact, data) or _places(artifact, data, constants)
    at = 0
    for begin, end, constant in sorted(marked):
        if begin < at:
            continue  # two constants with equal bytes are found at one place
        if begin > at:
            yield at, begin, None
        yield begin, end, constant
        at = end
    if at < len(artifact):
        yield at, len(artifact), None


def _arrays(artifact: bytes, data: _Bytes) -> list[tuple[int, int, int | None]]:
    """Where the large arrays of a framed artifact are; none where the artifact is not framed."""
    try:
        arrays = [np.frombuffer(each, np.uint8) for each in parts_of(artifact).arrays if len(each)]
    except ValueError:
        return []
    starts = [int(each.ctypes.data - data.ctypes.data) for each in arrays]
    return [(at, at + a.nbytes, None) for at, a in zip(starts, arrays, strict=True) if a.nbytes >= _LARGE]


def _places(artifact: bytes, data: _Bytes, constants: Mapping[int, _Bytes]) -> list[tuple[int, int, int | None]]:
    """Where the bytes of constants are. Engines' models have them in about the order of the constants."""
    found: list[tuple[int, int, int | None]] = []
    at = 0
    for value, wanted in constants.items():
        place = _find(artifact, data, wanted, at)
        if place < 0 and at:
            place = _find(artifact, data, wanted, 0)
        if place >= 0:
            at = place + wanted.nbytes
            found.append((place, at, value))
    return found


def _find(artifact: bytes, data: _Bytes, wanted: _Bytes, start: int) -> int:
    """Where the wanted bytes are after ``start``, or -1."""
    head = wanted[:_HEAD].tobytes()
    at = artifact.find(head, start)
    for _ in range(_TRIES):
        if at < 0:
            break
        if np.array_equal(data[at : at + wanted.nbytes], wanted):
            return at
        at = artifact.find(head, at + 1)
    return -1
