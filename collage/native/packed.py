"""Packed kernels as artifacts, which have numbers in their head, and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from collage.core.typed import MalformedError, shown, typed
from collage.errors import CollageError, ModuleFileError
from collage.kernel.frames import Artifact, frame, unframe
from collage.native.kernel_library import REVISION

_KIND = "native"


@dataclass(frozen=True)
class Packed:
    """A kernel that can be stored in a file: numbers by name (as JSON can hold them), and arrays by name."""

    numbers: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)


def to_bytes(algorithm: str, packed: Packed) -> bytes:
    """The bytes of the kernel and of the name of the algorithm that loads it."""
    shapes = {name: array.shape for name, array in packed.arrays.items()}
    head = {"revision": REVISION, "algorithm": algorithm, "numbers": packed.numbers, "arrays": shapes}
    arrays = [np.ascontiguousarray(array, np.float32).tobytes() for array in packed.arrays.values()]
    return frame(_KIND, head, arrays)


def from_artifact(artifact: Artifact) -> tuple[str, Packed]:
    """The algorithm's name and the kernel; its arrays are at multiples of 64 bytes, and copies or mapped read-only.

    Raises CollageError for bytes that are no kernel, and ModuleFileError for another revision of the kernels.
    """
    try:
        framed = unframe(_KIND, artifact)
        header = framed.header
        if header["revision"] != REVISION:
            raise ModuleFileError(
                f"it has kernels of revision {shown(header['revision'])}, and this Collage those of {REVISION}: "
                "compile the model again."
            )
        shapes = typed(dict[str, tuple[int, ...]], header["arrays"])
        arrays = {
            name: framed.array(i).view(np.float32).reshape(shape) for i, (name, shape) in enumerate(shapes.items())
        }
        if not isinstance(header["numbers"], dict):
            raise MalformedError("its numbers have no names")
        return typed(str, header["algorithm"]), Packed(_Numbers(header["numbers"]), _Numbers(arrays))
    except (ValueError, LookupError, TypeError) as error:
        raise CollageError(f"this is no kernel of Collage's own: {error}") from error


class _Numbers(dict[str, Any]):
    """Numbers and arrays by name; a missing name raises MalformedError, which says so."""

    def __missing__(self, name: str) -> Any:
        raise MalformedError(f"it lacks {name}")
