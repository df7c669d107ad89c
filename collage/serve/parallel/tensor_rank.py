"""One process of tensor parallelism: some heads and columns of each layer, for all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collage.backends.registry import Registry
from collage.native import LaunchList, team_of
from collage.serve.attention import AttentionBatch, LayerCache, attention_steps, make_cache
from collage.serve.decoder.buckets import bucket_for
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.iteration import (
    LastSegments,
    Values,
    arena_for,
    executor_of,
    tokens_of,
    wanted_rows,
)
from collage.serve.parallel.tensors import Tensors, add_up
from collage.serve.runner import Slice


class TensorRank:
    """The part of a decoder that was compiled for as many processes as there are.

    All processes run each iteration, and add up what their products give. The first one computes the logits.
    """

    def __init__(
        self,
        compiled: CompiledDecoder,
        registry: Registry,
        tensors: Tensors,
        blocks: int,
        cache: str = "float32",
    ) -> None:
        self._compiled = compiled
        self._tensors = tensors
        self._batch = AttentionBatch(compiled.heads, compiled.threads)
        self.caches = [make_cache(compiled.heads, blocks, cache) for _ in compiled.decoder.layers]
        arena = arena_for(compiled)
        self._values: dict[int, Values] = {}
        self._attention: dict[int, list[LaunchList]] = {}
        team, threads = team_of(compiled.threads), compiled.threads
        for tokens, parts in compiled.segments.items():
            values = Values(compiled, tokens, [executor_of(each, registry) for each in parts], arena)
            self._values[tokens] = values
            self._attention[tokens] = [
                LaunchList(
                    team,
                    attention_steps(
                        each.heads, self._batch, values.operands(layer, own), each.rotations, threads
                    ),
                )
                for layer, own, each in zip(
                    compiled.decoder.layers, self.caches, compiled.attention, strict=True
                )
            ]
        self._ends = None if tensors.rank else LastSegments(compiled, registry, arena)

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32] | None:
        """Run an iteration, whose slices are checked. The first process gets the logits, the others None.

        Raises PeerLostError.
        """
        ids, positions = tokens_of(slices)
        bucket = bucket_for(self._compiled.buckets, len(ids))
        values = self._values[bucket]
        self._batch.fill(slices)
        values.set_tokens(ids, positions)
        for segment, after in zip(values.segments, self._compiled.steps, strict=True):
            segment()
            if after.layer >= 0:
                self._attention[bucket][after.layer]()
            for name in after.sums:
                add_up(self._tensors, values.rows(name)[: len(ids)])
        return None if self._ends is None else self._ends.run(values, wanted_rows(slices))

    def close(self) -> None:
        """Free the cache and the kernels."""
        self._values, self._attention, self._ends, self.caches = {}, {}, None, list[LayerCache]()
