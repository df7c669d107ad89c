"""A decoder for several processes, run by threads of one: to check it where it is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from collage.backends.registry import Registry
from collage.errors import CollageError
from collage.serve.attention import BLOCK_TOKENS
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.runner import checked_tokens
from collage.serve.parallel.local import together
from collage.serve.parallel.tensor_rank import TensorRank
from collage.serve.runner import Slice


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
        self._ranks = [
            TensorRank(part, registry, end, blocks) for part, end in zip(parts, self.ends, strict=True)
        ]
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
        """Free the cache and the kernels."""
        self._pool.shutdown()
        for each in self._ranks:
            each.close()
