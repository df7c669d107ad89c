"""What a process computes, by the kind of parallelism."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collage.backends.registry import Registry
from collage.errors import CollageError
from collage.serve.attention import Cache
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.parallel.cache_rank import CacheRank
from collage.serve.parallel.options import CACHE, Parallelism
from collage.serve.parallel.pipeline_rank import PipelineRank
from collage.serve.parallel.stages import bounds_of
from collage.serve.parallel.tensors import Tensors

_PATTERNS = 61
"""The blocks of different numbers in a cache that is filled, which takes long enough."""

Rank = CacheRank | PipelineRank


def check_divisible(compiled: CompiledDecoder, parallelism: Parallelism) -> None:
    """Raise UsageError where a decoder cannot be divided like that."""
    if parallelism.kind != CACHE:
        bounds_of(len(compiled.decoder.layers), parallelism.processes)


def blocks_each(parallelism: Parallelism, blocks: int) -> int:
    """The blocks of the cache that each process has, where there are so many ids of blocks or a few more."""
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
    kind = CacheRank if parallelism.kind == CACHE else PipelineRank
    try:
        return kind(compiled, registry, tensors, blocks, cache)
    except MemoryError as error:
        raise CollageError(f"there is no memory for {blocks} blocks of the cache in each process.") from error


def fill_caches(caches: Sequence[Cache], seed: int, first_layer: int, owner: int, owners: int) -> None:
    """Fill the caches of some layers with normal numbers that follow from the seed, the layer and the block's id.

    Block b of the cache has the id ``b * owners + owner``.
    """
    for layer, cache in enumerate(caches, first_layer):
        random = np.random.default_rng((seed, layer))
        keys, values = (
            random.standard_normal((_PATTERNS, *each.shape[1:]), np.float32)
            for each in (cache.keys, cache.values)
        )
        for block in range(len(cache.keys)):
            pattern = (block * owners + owner) % _PATTERNS
            cache.keys[block], cache.values[block] = keys[pattern], values[pattern]
