"""Running a compiled decoder: iterations over slices of many requests, with a paged cache; see ``serve/runner.py``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from collage.backends.registry import Registry
from collage.errors import CollageError, InputError, UsageError
from collage.serve.attention import BLOCK_TOKENS, AttentionBatch, make_cache
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.costs import bucket_for, fastest_buckets, measured_ms, streams_ms
from collage.serve.decoder.iteration import (
    Iteration,
    LastSegments,
    Shared,
    arena_for,
    executor_of,
    tokens_of,
    wanted_rows,
)
from collage.serve.decoder.memory import block_bytes, chosen_blocks, free_bytes
from collage.serve.runner import Runner, Slice

logger = logging.getLogger(__name__)

_FASTER, _FASTER_MS = 1.5, 1.0
"""So many times as fast, and so many milliseconds less, are more than a machine's noise."""
_LOOKS, _SAMPLES = 3, 5
_MOST_LOOKED_AT = 32
"""A look takes iterations of the smallest bucket, and of the largest one up to so many tokens."""


class DecoderRunner:
    """A loaded decoder with its cache; see ``collage.serve.runner.Runner``. One thread at a time may use it."""

    def __init__(
        self,
        compiled: CompiledDecoder,
        registry: Registry,
        blocks: int | None = None,
        cache: str = "float32",
    ) -> None:
        """``blocks`` are those of the cache, by default as many as make sense, and ``cache`` is its type.

        In bfloat16 the cache has half the size, and keys and values are rounded to 8 bits of precision. In int8 it has
        little more than a quarter; they are multiples of the largest one of each token and head, divided by 127.

        Raises UsageError if memory does not suffice, with the largest number of blocks that fits, and for another
        type of the cache, and CollageError for kernels that cannot be loaded.
        """
        if compiled.processes > 1:
            raise UsageError(
                f"{compiled.name} is compiled for {compiled.processes} processes: serve it with --parallel tensor."
            )
        self._compiled = compiled
        layers = len(compiled.decoder.layers)
        bytes_each = block_bytes(compiled.heads, layers, cache)
        self.block_tokens = BLOCK_TOKENS
        self.block_count = chosen_blocks(blocks, bytes_each, compiled.max_length, free_bytes())
        self.max_tokens = compiled.buckets[-1]
        self.max_length = compiled.max_length
        self.vocabulary = compiled.decoder.vocabulary
        self.end_tokens = compiled.end_tokens
        self.threads = compiled.threads
        self._batch = AttentionBatch(compiled.heads, compiled.threads)
        self.caches = [make_cache(compiled.heads, self.block_count, cache) for _ in range(layers)]
        """The caches of the layers."""
        arena = arena_for(compiled)
        shared = Shared(self._batch, self.caches, arena)
        self.buckets = compiled.buckets
        """The numbers of tokens that it was compiled for; an iteration of others is padded."""
        self.iterations = {
            tokens: Iteration(compiled, tokens, [executor_of(each, registry) for each in parts], shared)
            for tokens, parts in compiled.segments.items()
        }
        """What computes iterations, by its bucket of tokens."""
        self._fastest = fastest_buckets(compiled.buckets, compiled.costs_ms)
        self._ends: LastSegments | None = LastSegments(compiled, registry, arena)

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        """One row of logits [wanted, vocabulary] for each slice that wants them, in order.

        The next iteration overwrites them. Raises InputError for slices that do not fit the decoder; nothing is
        computed then.
        """
        if self._ends is None:
            raise CollageError("the runner is closed.")
        ids, positions = checked_tokens(self, slices)
        iteration = self.iterations[self._fastest[bucket_for(self.buckets, len(ids))]]
        self._batch.fill(slices)
        iteration.run(ids, positions)
        return self._ends.run(iteration, wanted_rows(slices))

    def cost_ms(self, tokens: int) -> float:
        bucket = self._fastest[bucket_for(self.buckets, tokens)]
        if bucket not in self._compiled.costs_ms:
            raise CollageError(f"the time of an iteration of {bucket} tokens was not measured.")
        return self._compiled.costs_ms[bucket]

    def body_ms(self, tokens: int) -> float:
        """The measured time of an iteration with that many tokens of one prompt and no logits, in milliseconds.

        It is ``cost_ms`` for files that do not tell it.
        """
        bucket = self._fastest[bucket_for(self.buckets, tokens)]
        return self._compiled.body_ms.get(bucket, self.cost_ms(tokens))

    def set_costs(self, costs_ms: Mapping[int, float], body_ms: Mapping[int, float]) -> None:
        """Have other times of iterations, by bucket, with rows of logits and without; {} if they are not known.

        An iteration is run in the bucket that is fastest by them.
        """
        self._compiled = replace(self._compiled, costs_ms=dict(costs_ms), body_ms=dict(body_ms))
        self._fastest = fastest_buckets(self.buckets, costs_ms)

    def close(self) -> None:
        self.iterations, self._ends = {}, None


def checked_tokens(runner: Runner, slices: Sequence[Slice]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens of all slices and their positions. Raises InputError for what the runner cannot run."""
    count = sum(len(each.token_ids) for each in slices)
    if not 0 < count <= runner.max_tokens:
        raise InputError(f"an iteration has 1 to {runner.max_tokens} tokens, not {count}.")
    ids, positions = tokens_of(slices)
    if ids.min() < 0 or ids.max() >= runner.vocabulary:
        raise InputError(f"token ids must be from 0 to {runner.vocabulary - 1}.")
    ends = np.array([each.start + len(each.token_ids) for each in slices])
    if not all(each.token_ids and each.start >= 0 for each in slices) or ends.max() > runner.max_length:
        raise InputError(f"a slice has at least one token, and ends within {runner.max_length} tokens.")
    held = np.array([len(each.blocks) for each in slices])
    if (short := np.flatnonzero(held * BLOCK_TOKENS < ends)).size:
        raise InputError(f"{held[short[0]]} blocks do not hold {ends[short[0]]} tokens.")
    blocks = np.fromiter(chain.from_iterable(each.blocks for each in slices), np.int64)
    if blocks.min() < 0 or blocks.max() >= runner.block_count:
        raise InputError(f"blocks are numbers from 0 to {runner.block_count - 1}.")
    return ids, positions


def use_todays_costs(runner: DecoderRunner) -> bool:
    """Measure the times of iterations again if a look shows shorter ones. Returns whether that was done.

    Else prompts would be computed in small pieces for as long as a file is used that was compiled beside other work. If
    iterations are slower now, other work may be the reason, and the file's times are the better ones. The runner must
    be idle, and its cache empty.
    """
    few = [each for each in runner.buckets if each <= _MOST_LOOKED_AT]
    known_ms = {each: runner.cost_ms(each) for each in {runner.buckets[0], *few[-1:]}}
    now_ms = {each: streams_ms(runner, each, _LOOKS) for each in sorted(known_ms)}
    gains = [known_ms[each] > max(_FASTER * ms, ms + _FASTER_MS) for each, ms in now_ms.items()]
    if not any(gains):
        return False
    found = " and ".join(f"{ms:.1f} ms for {each} tokens" for each, ms in now_ms.items())
    before = " and ".join(f"{known_ms[each]:.1f}" for each in now_ms)
    logger.warning(
        "iterations take %s, and took %s when the decoder was compiled, perhaps beside other work: "
        "they are measured again for this server. Compile it once more on a quiet machine to spare that.",
        *(found, before),
    )
    runner.set_costs({}, {})
    runner.set_costs(*measured_ms(runner, runner.buckets, _SAMPLES))
    return True
