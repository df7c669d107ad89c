"""What a process computes, by the kind of parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.backends.registry import Registry
from collage.errors import CollageError, UsageError
from collage.serve.attention import LayerCache
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.parallel.cache_rank import CacheRank
from collage.serve.parallel.options import CACHE, PIPELINE, TENSOR, Parallelism
from collage.serve.parallel.pipeline_rank import PipelineRank, bounds_of
from collage.serve.parallel.tensor_rank import TensorRank
from collage.serve.parallel.tensors import Tensors

_PATTERNS = 61
"""The blocks of different numbers in a cache that is filled, which takes long enough."""

Rank = CacheRank | TensorRank | PipelineRank
_RANKS: dict[str, type[CacheRank] | type[TensorRank] | type[PipelineRank]] = {
    CACHE: CacheRank,
    TENSOR: TensorRank,
    PIPELINE: PipelineRank,
}


def check_divisible(compiled: CompiledDecoder, parallelism: Parallelism) -> None:
    """Raise UsageError if a decoder cannot be divided like that."""
    wanted = parallelism.parts
    if compiled.processes != wanted:
        one = "one process" if compiled.processes == 1 else f"{compiled.processes} processes of tensor parallelism"
        how = "without --tensor-parallel" if wanted == 1 else f"with --tensor-parallel {wanted}"
        raise UsageError(
            f"{compiled.name} is compiled for {one}; compile it {how} to serve it with --parallel {parallelism.kind} "
            f"--processes {parallelism.processes}."
        )
    if parallelism.kind == PIPELINE:
        bounds_of(len(compiled.decoder.layers), parallelism.processes)


def blocks_each(parallelism: Parallelism, blocks: int) -> int:
    """The blocks of the cache that each process has, if there are so many ids of blocks or a few more."""
    return -(-blocks // parallelism.processes) if parallelism.kind == CACHE else blocks


def make_rank(
    parallelism: Parallelism,
    compiled: CompiledDecoder,
    registry: Registry,
    tensors: Tensors,
    blocks: int,
    cache: str,
) -> Rank:
    """The part of a decoder that process ``tensors.rank`` computes. Raises CollageError."""
    try:
        return _RANKS[parallelism.kind](compiled, registry, tensors, blocks, cache)
    except MemoryError as error:
        raise CollageError(f"there is no memory for {blocks} blocks of the cache in each process.") from error


@dataclass(frozen=True)
class Held:
    """What of the cache a process holds: block b is number ``b * owners + owner``, of part ``part`` of the heads."""

    first_layer: int = 0
    owner: int = 0
    owners: int = 1
    part: int = 0
    parts: int = 1


def held_by(parallelism: Parallelism, rank: int, layers: int) -> Held:
    """What process ``rank`` holds of a decoder of so many layers."""
    size = parallelism.processes
    if parallelism.kind == CACHE:
        return Held(owner=rank, owners=size)
    if parallelism.kind == TENSOR:
        return Held(part=rank, parts=size)
    return Held(first_layer=bounds_of(layers, size)[rank])


def fill_caches(caches: Sequence[LayerCache], seed: int, held: Held) -> None:
    """Fill the caches of some layers with normal numbers that follow from the seed, the layer, head and block."""
    for layer, cache in enumerate(caches, held.first_layer):
        heads = cache.keys.shape[1]
        own = slice(held.part * heads, (held.part + 1) * heads)
        random = np.random.default_rng((seed, layer))
        keys, values = (
            random.standard_normal((_PATTERNS, heads * held.parts, *each.shape[2:]), np.float32)[:, own]
            for each in (cache.keys, cache.values)
        )
        for block in range(len(cache.keys)):
            pattern = (block * held.owners + held.owner) % _PATTERNS
            cache.fill(block, keys[pattern], values[pattern])
