"""One process of pipeline parallelism: some of the layers, with their cache, for all tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collage.backends.registry import Registry
from collage.core.printable import printable
from collage.errors import UsageError
from collage.graph.dataflow import TensorType
from collage.serve.attention import AttentionBatch, make_cache
from collage.serve.decoder.compiled import IDS, POSITIONS, CompiledDecoder, Wiring
from collage.serve.decoder.costs import bucket_for
from collage.serve.decoder.iteration import (
    Iteration,
    LastSegments,
    Shared,
    arena_for,
    executor_of,
    tokens_of,
    wanted_rows,
)
from collage.serve.parallel.tensors import Tensors, Wait
from collage.serve.runner import Slice


@dataclass(frozen=True)
class DecoderStage:
    """Some layers of a decoder, as a decoder of its own.

    ``entering`` are the values that come from the stage before, with the type that they have at each bucket, and
    ``leaving`` those that the next stage gets. The last stage has the last segment.
    """

    compiled: CompiledDecoder
    entering: dict[int, dict[str, TensorType]]
    leaving: tuple[str, ...]


def bounds_of(layers: int, stages: int) -> tuple[int, ...]:
    """The first layer of each stage, and the number of layers. Raises UsageError for more stages than layers."""
    if stages > layers:
        raise UsageError(f"{layers} layers are too few for {stages} processes one after another.")
    return tuple(layers * stage // stages for stage in range(stages + 1))


def stage_of(compiled: CompiledDecoder, stage: int, stages: int) -> DecoderStage:
    """One of the stages. Raises UsageError for more stages than layers, and if other values than rows cross."""
    layers = compiled.decoder.layers
    first, last = bounds_of(len(layers), stages)[stage : stage + 2]
    whole = last == len(layers)
    entering, leaving = crossing(compiled, first), () if whole else crossing(compiled, last)
    end = compiled.wiring[-1] if whole else Wiring(leaving, ())
    part = replace(
        compiled,
        decoder=replace(compiled.decoder, layers=layers[first:last]),
        attention=compiled.attention[first:last],
        wiring=(*compiled.wiring[first:last], end),
        segments={tokens: parts[first:last] for tokens, parts in compiled.segments.items()},
        ends=compiled.ends if whole else {},
    )
    types = {tokens: {name: _type(compiled, tokens, name) for name in entering} for tokens in compiled.segments}
    most = max(types)
    for name, kind in types[most].items():
        rows = math.prod(kind.shape[:-1])
        if kind.dtype != "float32" or rows != most:
            raise UsageError(
                f"{printable(name)} is {kind.dtype} {list(kind.shape)} and is read by several layers: only rows of "
                "float32 for each token go from one process to the next, so layers cannot be divided among processes."
            )
    return DecoderStage(part, types, leaving)


def crossing(compiled: CompiledDecoder, border: int) -> tuple[str, ...]:
    """The values that the layers from ``border`` on read of what is made before, in order."""
    made = {name for each in compiled.wiring[:border] for name in each.writes}
    made.update(layer.output for layer in compiled.decoder.layers[:border])
    read = (name for each in compiled.wiring[border:] for name in each.reads)
    return tuple(dict.fromkeys(name for name in read if name in made))


def _type(compiled: CompiledDecoder, tokens: int, name: str) -> TensorType:
    for parts, wiring in zip(compiled.segments[tokens], compiled.wiring, strict=False):
        program = parts.program
        names, ports = (*wiring.reads, *wiring.writes), (*program.model_inputs, *program.model_outputs)
        for other, port in zip(names, ports, strict=True):
            if other == name and isinstance(port.type, TensorType):
                return port.type
    assert name not in (IDS, POSITIONS)
    layer = next(each for each in compiled.decoder.layers if each.output == name)
    return TensorType((tokens, layer.heads * layer.value_dim), "float32")


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
