"""Random iterations of prompts and single tokens, and ranks that run them in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from collage.serve.attention import BLOCK_TOKENS
from collage.serve.runner import Slice

T = TypeVar("T")


class Mix:
    """Some sequences whose blocks are anywhere in the cache, and which grow by any number of tokens."""

    def __init__(self, sequences: int, longest: int, blocks: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.tokens = [self.random.integers(0, 256, longest).tolist() for _ in range(sequences)]
        ids = self.random.permutation(blocks).tolist()
        each = -(-longest // BLOCK_TOKENS)
        self._blocks = [tuple(ids[n * each : (n + 1) * each]) for n in range(sequences)]
        self.starts = [0] * sequences

    def slices(self, counts: Sequence[int], most: int) -> list[Slice]:
        """So many new tokens of each sequence, in any order, as far as there is room."""
        found: list[Slice] = []
        for number in self.random.permutation(len(self.tokens)).tolist():
            start = self.starts[number]
            left = min(most - sum(len(each.token_ids) for each in found), len(self.tokens[number]) - start)
            count = min(counts[number], left)
            if not count:
                continue
            end = start + count
            blocks = self._blocks[number][: -(-end // BLOCK_TOKENS)]
            part = tuple(self.tokens[number][start:end])
            found.append(Slice(part, start, blocks, bool(self.random.integers(4))))
            self.starts[number] = end
        return found

    def sequence_of(self, part: Slice) -> int:
        """The number of the sequence that a slice is of. Another one may have the same tokens at these positions."""
        return next(number for number, blocks in enumerate(self._blocks) if blocks[0] == part.blocks[0])


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Call all in threads, and return what they return."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]
