"""The buffers between segments: each value's array, with memory that is used again when nobody reads it any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage.graph.dataflow import Array, TensorType, np_dtype
from collage.kernel.buffers import aligned_bytes


def allocate(
    types: Mapping[str, TensorType], writes: Sequence[Sequence[str]], reads: Sequence[Sequence[str]]
) -> dict[str, Array]:
    """An array for each value. Step i writes ``writes[i]`` and reads ``reads[i]``, and may not do both in one memory.

    All bytes begin as zeros, since rows that no token has are computed, too.
    """
    last = {name: step for step, names in enumerate(reads) for name in names}
    free: dict[int, list[Array]] = {}
    found: dict[str, Array] = {}
    memory: dict[str, Array] = {}
    for step, names in enumerate(writes):
        for name in names:
            kind = types[name]
            spare = free.get(kind.nbytes)
            memory[name] = spare.pop() if spare else _zeros(kind.nbytes)
            found[name] = memory[name].view(np_dtype(kind.dtype)).reshape(kind.shape)
        for name in list(memory):
            if last.get(name, len(reads)) <= step:
                raw = memory.pop(name)
                free.setdefault(raw.nbytes, []).append(raw)
    return found


def _zeros(size: int) -> Array:
    found = aligned_bytes(size)
    found.fill(0)
    return found
