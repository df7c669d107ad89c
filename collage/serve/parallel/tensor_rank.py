"""One process of tensor parallelism: some heads and columns of each layer, for all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from collage.backends.registry import Registry
from collage.errors import CollageError
from collage.native import LaunchList, team_of
from collage.serve.attention import BLOCK_TOKENS, AttentionBatch, LayerCache, attention_steps, make_cache
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.costs import bucket_for
from collage.serve.decoder.iteration import (
    LastSegments,
    Values,
    arena_for,
    executor_of,
    tokens_of,
    wanted_rows,
)
from collage.serve.decoder.runner import checked_tokens
from collage.serve.parallel.tensors import Tensors, add_up, together
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
                    attention_steps(each.heads, self._batch, values.operands(layer, own), each.rotations, threads),
                )
                for layer, own, each in zip(compiled.decoder.layers, self.caches, compiled.attention, strict=True)
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
        self._values, self._attention, self._ends, self.caches = {}, {}, None, list[LayerCache]()


class ThreadRunner:
    """The parts of a decoder, each in a thread of its own; see ``collage.serve.runner.Runner``."""

    def __init__(self, parts: Sequence[CompiledDecoder], registry: Registry, blocks: int) -> None:
        first = parts[0]
        self.block_tokens = BLOCK_TOKENS
        self.block_count = blocks
        self.max_tokens = first.buckets[-1]
        self.max_length = first.max_length
        self.vocabulary = first.decoder.vocabulary
        self.ends = together(len(parts))
        self._ranks = [TensorRank(part, registry, end, blocks) for part, end in zip(parts, self.ends, strict=True)]
        self._pool = ThreadPoolExecutor(len(parts))

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        """One row of logits [wanted, vocabulary] for each slice that wants them, in order. Raises InputError."""
        checked_tokens(self, slices)
        found = [each.result() for each in [self._pool.submit(rank.step, slices) for rank in self._ranks]]
        assert found[0] is not None
        return found[0]

    def cost_ms(self, tokens: int) -> float:
        """Raise CollageError: threads of one process take another time than processes do."""
        raise CollageError("the time of an iteration was not measured.")

    def close(self) -> None:
        self._pool.shutdown()
        for each in self._ranks:
            each.close()
