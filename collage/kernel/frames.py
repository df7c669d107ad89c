"""Artifacts with arrays: a head of JSON, and arrays that a kernel may read if the module file is mapped."""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from collage.core.typed import parse_object, shown
from collage.kernel.buffers import ALIGNMENT, aligned_bytes

Buffer: TypeAlias = "bytes | memoryview"

_MAGIC = b"frmd"
_START = struct.Struct("<4sI")


@dataclass(frozen=True)
class Framed:
    """The parts of an artifact. ``mapped`` arrays belong to the module file, and so to all who read it."""

    head: Buffer
    arrays: tuple[Buffer, ...]
    mapped: bool = False

    @property
    def header(self) -> dict[str, Any]:
        """The header that ``frame`` was given, with the kind and the sizes. Raises ValueError when it is damaged."""
        return parse_object(bytes(self.head))

    def array(self, index: int) -> npt.NDArray[np.uint8]:
        """An array's bytes from a 64-byte boundary on: in the file itself, read-only, or else a copy of them.

        Raises ValueError if there is none of that number.
        """
        if not 0 <= index < len(self.arrays):
            raise ValueError(f"it has {len(self.arrays)} arrays, and reads number {index}")
        content = np.frombuffer(self.arrays[index], np.uint8)
        if self.mapped and content.ctypes.data % ALIGNMENT == 0:
            return content
        result = aligned_bytes(content.nbytes)
        result[:] = content
        return result

    def __reduce__(self) -> Any:
        """Pickled, it is a copy."""
        return Framed, (bytes(self.head), tuple(map(bytes, self.arrays)))


Artifact: TypeAlias = "Buffer | Framed"


def head_of(kind: str, header: Mapping[str, Any], arrays: Sequence[Buffer]) -> bytes:
    """The head of such an artifact."""
    sizes = [len(each) for each in arrays]
    return json.dumps({"kind": kind, "sizes": sizes, **header}, separators=(",", ":")).encode()


def frame(kind: str, header: Mapping[str, Any], arrays: Sequence[Buffer]) -> bytes:
    """An artifact of that kind with a header of JSON values, and with arrays at multiples of 64 bytes."""
    return b"".join(pieces_of(head_of(kind, header, arrays), arrays))


def pieces_of(head: Buffer, arrays: Sequence[Buffer]) -> list[Buffer]:
    """The pieces of such an artifact, one after the other. The arrays are not copied."""
    parts: list[Buffer] = [_START.pack(_MAGIC, len(head)), head]
    at = _START.size + len(head)
    for each in arrays:
        parts += [bytes(-at % ALIGNMENT), each]
        at += -at % ALIGNMENT + len(each)
    return parts


def is_framed(artifact: Artifact) -> bool:
    """Whether ``frame`` made it."""
    return isinstance(artifact, Framed) or bytes(artifact[: len(_MAGIC)]) == _MAGIC


def unframe(kind: str, artifact: Artifact) -> Framed:
    """The parts of an artifact of that kind. Raises ValueError saying what is wrong with it."""
    found = artifact if isinstance(artifact, Framed) else parts_of(artifact)
    if found.header.get("kind") != kind:
        raise ValueError(f"it is of the kind {shown(found.header.get('kind'))}")
    return found


def parts_of(artifact: Buffer) -> Framed:
    """Head and arrays of what ``frame`` made, without a copy. Raises ValueError."""
    if len(artifact) < _START.size or not is_framed(artifact):
        raise ValueError("it does not begin like one")
    found = framed_of([artifact])
    if found is None:
        raise ValueError("it is cut short")
    return found


def framed_of(pieces: Sequence[Buffer]) -> Framed | None:
    """The same for an artifact in pieces. None if it is no such artifact, or not each array is within a piece.

    Raises ValueError if its head is damaged.
    """
    if not pieces or len(pieces[0]) < _START.size or not is_framed(pieces[0]):
        return None
    _, length = _START.unpack_from(pieces[0])
    first = memoryview(pieces[0])
    at = _START.size + length
    found = Framed(first[_START.size : at], ())
    sizes = found.header.get("sizes")
    if not isinstance(sizes, list) or not all(type(each) is int and each >= 0 for each in sizes):
        raise ValueError("its head does not tell the sizes of its arrays")
    arrays: list[Buffer] = []
    begin, left = 0, deque(pieces)
    for size in sizes:
        at += -at % ALIGNMENT
        while left and at + size > begin + len(left[0]):
            begin += len(left.popleft())
        if not left or at < begin:
            return None
        arrays.append(memoryview(left[0])[at - begin : at - begin + size])
        at += size
    return Framed(found.head, tuple(arrays))
