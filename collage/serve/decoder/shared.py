"""One copy of equal weights: the arrays of all artifacts of a decoder, kept by their content."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from collage.kernel.buffers import aligned_bytes
from collage.kernel.frames import Artifact, Framed, is_framed, parts_of
from collage.runtime.parts import Parts


class SharedArrays:
    """Arrays by their digest. Kernels of one decoder that have the same weights, in the same order, share them."""

    def __init__(self) -> None:
        self._arrays: dict[bytes, memoryview] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(len(each) for each in self._arrays.values())

    def adopt(self, parts: Parts) -> Parts:
        """The parts with artifacts whose arrays are the shared ones."""
        return replace(parts, artifacts=[self._adopted(each) for each in parts.artifacts])

    def _adopted(self, artifact: Artifact) -> Artifact:
        if not is_framed(artifact):
            return artifact
        framed = artifact if isinstance(artifact, Framed) else parts_of(artifact)
        arrays = tuple(self._shared(np.frombuffer(each, np.uint8)) for each in framed.arrays)
        return Framed(bytes(framed.head), arrays, mapped=True)  # they are aligned, and so read where they are

    def _shared(self, content: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> memoryview:
        digest = hashlib.sha256(content.data).digest()
        if digest not in self._arrays:
            copy = aligned_bytes(content.nbytes)
            copy[:] = content
            copy.flags.writeable = False
            self._arrays[digest] = copy.data
        return self._arrays[digest]
