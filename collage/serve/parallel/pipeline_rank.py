"""One process of pipeline parallelism: some of the layers, with their cache, for all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collage.backends.registry import Registry
from collage.serve.attention import AttentionBatch, make_cache
from collage.serve.decoder.buckets import bucket_for
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.iteration import (
    Iteration,
    LastSegments,
    Shared,
    arena_for,
    executor_of,
    tokens_of,
    wanted_rows,
)
from collage.serve.parallel.stages import stage_of
from collage.serve.parallel.tensors import Tensors, Wait
from collage.serve.runner import Slice


class PipelineRank:
    """The layers of stage ``tensors.rank``. What leaves them goes to the next process, and logits to the first one.

    Iterations follow each other: while one is in the next process, this one may run another.
    """

    def __init__(
        self,
        compiled: CompiledDecoder,
        registry: Registry,
        tensors: Tensors,
        blocks: int,
        cache: str = "float32",
    ) -> None:
        stage = stage_of(compiled, tensors.rank, tensors.size)
        own = stage.compiled
        self._compiled = own
        self._tensors = tensors
        self._leaving = stage.leaving
        self._entering = tuple(stage.entering[own.buckets[0]])
        self._batch = AttentionBatch(own.heads, own.threads)
        self.caches = [make_cache(own.heads, blocks, cache) for _ in own.decoder.layers]
        arena = arena_for(own)
        shared = Shared(self._batch, self.caches, arena)
        self._iterations = {
            tokens: Iteration(
                own, tokens, [executor_of(each, registry) for each in parts], shared, stage.entering[tokens]
            )
            for tokens, parts in own.segments.items()
        }
        self._ends = LastSegments(own, registry, arena) if own.ends else None
        self._sent: Wait = lambda: None

    def step(self, slices: Sequence[Slice]) -> None:
        """Run an iteration's layers, and pass on what they make. Raises PeerLostError."""
        tensors = self._tensors
        ids, positions = tokens_of(slices)
        iteration = self._iterations[bucket_for(self._compiled.buckets, len(ids))]
        if tensors.rank:
            self._enter(iteration, len(ids))
        self._batch.fill(slices)
        iteration.run(ids, positions)
        if self._ends is None:
            rows = [iteration.rows(name)[: len(ids)] for name in self._leaving]
            self._send(tensors.rank + 1, np.concatenate(rows, axis=1))
            return
        wanted = wanted_rows(slices)
        if len(wanted):
            self._send(0, self._ends.run(iteration, wanted).copy())  # the next iteration writes over it

    def logits(self, wanted: int) -> NDArray[np.float32]:
        """The logits of an iteration, in the first process. They come in the order of iterations."""
        found = np.empty((wanted, self._compiled.decoder.vocabulary), np.float32)
        if wanted:
            self._tensors.receive(self._tensors.size - 1, found)()
        return found

    def close(self) -> None:
        """Free the cache and the kernels."""
        self._iterations, self._ends, self.caches = {}, None, []

    def _enter(self, iteration: Iteration, tokens: int) -> None:
        rows = [iteration.rows(name)[:tokens] for name in self._entering]
        packed = np.empty((tokens, sum(each.shape[1] for each in rows)), np.float32)
        self._tensors.receive(self._tensors.rank - 1, packed)()
        at = 0
        for each in rows:
            each[...] = packed[:, at : at + each.shape[1]]
            at += each.shape[1]

    def _send(self, peer: int, array: NDArray[np.float32]) -> None:
        """Begin to send an array, when the one before has arrived; meanwhile the next iteration may run."""
        self._sent()
        self._sent = self._tensors.send(peer, array)
