"""Packed kernels as bytes, and back: JSON, then the arrays."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from collage.errors import CollageError, ModuleFileError
from collage.native.kernel_library import REVISION
from collage.runtime.buffers import aligned_bytes

_MAGIC = b"ntve"
_HEAD = struct.Struct("<4sI")


@dataclass(frozen=True)
class Packed:
    """A kernel that travels: numbers by name (what JSON can hold), and arrays by name."""

    numbers: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)


def to_bytes(algorithm: str, packed: Packed) -> bytes:
    """The kernel, with the name of the algorithm that loads it."""
    shapes = {name: array.shape for name, array in packed.arrays.items()}
    head = {"revision": REVISION, "algorithm": algorithm, "numbers": packed.numbers, "arrays": shapes}
    header = json.dumps(head).encode()
    arrays = (np.ascontiguousarray(array, np.float32).tobytes() for array in packed.arrays.values())
    return b"".join((_HEAD.pack(_MAGIC, len(header)), header, *arrays))


def from_bytes(data: bytes) -> tuple[str, Packed]:
    """The algorithm's name and the kernel, its arrays copied to multiples of 64 bytes.

    Raises CollageError for what is none, ModuleFileError for one of another revision of the kernels.
    """
    try:
        magic, length = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError("it does not begin like one")
        header = json.loads(data[_HEAD.size : _HEAD.size + length])
        if header["revision"] != REVISION:
            raise ModuleFileError(
                f"it has kernels of revision {header['revision']}, and this Collage those of {REVISION}: "
                "compile the model again."
            )
        at = _HEAD.size + length
        arrays = {}
        for name, shape in header["arrays"].items():
            content = np.frombuffer(data, np.float32, int(np.prod(shape)), at)
            arrays[name] = aligned_bytes(content.nbytes).view(np.float32).reshape(shape)
            arrays[name][...] = content.reshape(shape)
            at += content.nbytes
        return header["algorithm"], Packed(header["numbers"], arrays)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise CollageError(f"this is no kernel of Collage's own: {error}") from error
