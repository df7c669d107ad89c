"""Loading what one process needs of a compiled decoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from collage.backends.registry import Registry
from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_empty
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts, load_parts
from collage.serve.decoder.buckets import bucket_for
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.iteration import End, Values


def executor_of(parts: Parts, registry: Registry) -> Executor:
    """A segment's kernels."""
    found = load_parts(parts, registry)
    assert isinstance(found, Executor)  # a segment is compiled strictly, without an engine's suffix
    return found


def arena_for(parts: Iterable[Parts]) -> Array:
    """Memory in which each of these segments can run."""
    return aligned_empty((max(max(each.program.memory.nbytes, 1) for each in parts),), "uint8")


class LastSegments:
    """The last segment, for each bucket of rows."""

    def __init__(self, compiled: CompiledDecoder, registry: Registry, arena: Array) -> None:
        self._vocabulary = compiled.decoder.vocabulary
        self._buckets = tuple(sorted(compiled.ends))
        self._ends = {
            rows: End(compiled.wiring[-1], rows, executor_of(parts, registry), arena)
            for rows, parts in compiled.ends.items()
        }

    def run(self, values: Values, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """The logits [rows, vocabulary] of these rows."""
        most, rows = self._buckets[-1], np.asarray(rows, np.int64)
        found = np.empty((len(rows), self._vocabulary), np.float32)
        for at in range(0, len(rows), most):
            part = rows[at : at + most]
            found[at : at + most] = self._ends[bucket_for(self._buckets, len(part))].run(values, part)
        return found
