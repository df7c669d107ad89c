"""Dividing an iteration among processes that share the cache: whose tokens, whose blocks, and who sends what.

Process b % N holds block b, as its block b // N. Tokens are divided evenly, whichever sequence they are of: each
process computes everything but attention for its own ones. A token's q goes to all processes that hold a block which
the token sees, its k and v go to the one that holds its block, and partial results come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from collage.graph.dataflow import Array
from collage.serve.attention import BLOCK_TOKENS
from collage.serve.decoder.iteration import wanted_rows
from collage.serve.runner import Slice

Rows = NDArray[np.int64]

_NOWHERE = 1 << 60


@dataclass(frozen=True)
class Division:
    """An iteration of ``tokens`` tokens as each of ``size`` processes knows it.

    ``bounds[p]`` to ``bounds[p + 1]`` are the tokens of process p. ``seen`` [process, token] tells who holds a block
    that a token sees, ``writer`` [token] who holds the token's block, and ``slot`` the block's number there. The rest
    has one entry for each block of a slice: its owner and its number there, its slice, and its place in the sequence.
    """

    size: int
    slices: Sequence[Slice]
    bounds: tuple[int, ...]
    seen: NDArray[np.bool_]
    writer: Rows
    slot: Rows
    owner: Rows
    number: Rows
    of_slice: Rows
    place: Rows

    @property
    def tokens(self) -> int:
        """The tokens of the iteration."""
        return self.bounds[-1]

    @cached_property
    def wanted(self) -> Rows:
        """The tokens whose logits are wanted."""
        return wanted_rows(self.slices)

    def wanted_of(self, process: int) -> slice:
        """Which rows of the logits a process computes."""
        first, last = np.searchsorted(self.wanted, self.bounds[process : process + 2])
        return slice(int(first), int(last))

    def queries(self, home: int, holder: int) -> Rows:
        """The tokens whose q goes from their home to a holder, and whose partial results come back."""
        first, last = self.bounds[home : home + 2]
        return np.flatnonzero(self.seen[holder, first:last]) + first

    def writes(self, home: int, holder: int) -> Rows:
        """The tokens whose k and v go from their home to the process that holds their block."""
        first, last = self.bounds[home : home + 2]
        return np.flatnonzero(self.writer[first:last] == holder) + first

    def batch(self, process: int) -> Mapping[str, Array]:
        """The arrays of the C struct for the blocks that a process holds."""
        mine = self.owner == process
        counts = np.bincount(self.of_slice[mine], minlength=len(self.slices))
        lengths = [len(each.token_ids) for each in self.slices]
        return {
            "first": np.cumsum([0, *lengths], dtype=np.int64),
            "start": np.array([each.start for each in self.slices], np.int64),
            "table": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            "tables": self.number[mine].astype(np.int32),
            "places": self.place[mine].astype(np.int32),
            "stored": np.where(self.writer == process, self.slot, -1).astype(np.int32),
        }


def divide(slices: Sequence[Slice], size: int) -> Division:
    """Divide an iteration among ``size`` processes."""
    lengths = np.array([len(each.token_ids) for each in slices])
    counts = np.array([len(each.blocks) for each in slices])
    tokens = int(lengths.sum())
    blocks = np.fromiter((block for each in slices for block in each.blocks), np.int64)
    of_slice = np.repeat(np.arange(len(slices)), counts)
    begins = np.cumsum(counts) - counts
    place = np.arange(len(blocks)) - begins[of_slice]
    owner = blocks % size
    first_held = np.full((size, len(slices)), _NOWHERE, np.int64)
    np.minimum.at(first_held, (owner, of_slice), place)
    of_token = np.repeat(np.arange(len(slices)), lengths)
    starts = np.array([each.start for each in slices], np.int64)
    at = (starts + lengths - np.cumsum(lengths))[of_token] + np.arange(tokens)  # positions
    last = at // BLOCK_TOKENS
    written = blocks[begins[of_token] + last]
    return Division(
        size,
        slices,
        tuple(-(-tokens * process // size) for process in range(size + 1)),
        first_held[:, of_token] <= last,
        written % size,
        written // size,
        owner,
        blocks // size,
        of_slice,
        place,
    )
