"""One process of Cache Parallelism: its share of the cache, and all but attention for its share of the tokens.

Process b % N holds block b, as its block b // N. Tokens are divided evenly, whichever sequence they are of. A token's q
goes to all processes that hold a block which the token sees, its k and v go to the holder of its block, and partial
results come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from collage.backends.registry import Registry
from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_empty
from collage.native import LaunchList, team_of
from collage.serve import attention
from collage.serve.attention import (
    BLOCK_TOKENS,
    AttentionBatch,
    LayerAttention,
    LayerCache,
    Merge,
    Operands,
    attention_steps,
    make_cache,
)
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
from collage.serve.parallel.tensors import Tensors, exchange
from collage.serve.runner import Slice

Rows = NDArray[np.int64]

_NOWHERE = 1 << 60


@dataclass(frozen=True)
class Division:
    """An iteration of ``tokens`` tokens as each of ``size`` processes knows it.

    ``bounds[p]`` to ``bounds[p + 1]`` are the tokens of process p. ``seen`` [process, token] says who holds a block
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
        return self.bounds[-1]

    @cached_property
    def wanted(self) -> Rows:
        return wanted_rows(self.slices)

    def wanted_of(self, process: int) -> slice:
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


_SUMS = 2  # m and s, which are before the o of a head


class CacheAttention:
    """The attention of all layers for iterations of up to ``most`` tokens, those of all processes together.

    ``rows`` has q, k and v of the tokens that this process needs, and ``partials``
    [process, token, heads, 2 + value_dim] what this process has found for all tokens, and the others for this one's.
    """

    def __init__(
        self,
        layers: Sequence[LayerAttention],
        caches: Sequence[LayerCache],
        threads: int,
        tensors: Tensors,
        most: int,
    ) -> None:
        heads = layers[0].heads
        self._tensors = tensors
        parts = np.cumsum([0, *heads.widths[:3]]).tolist()
        self._parts = [slice(first, last) for first, last in pairwise(parts)]
        self._wide, width = heads.widths[0], parts[-1]
        rank, size = tensors.rank, tensors.size
        self.rows: Array = aligned_empty((most, width), "float32")
        self.rows.fill(0)  # rows that others need are read before they have a meaning
        self.partials: Array = aligned_empty((size, most, heads.heads, _SUMS + heads.value_dim), "float32")
        self._peers = [peer for peer in range(size) if peer != rank]
        self._outgoing = {peer: aligned_empty((most * width,), "float32") for peer in self._peers}
        self._incoming = {peer: aligned_empty((most * width,), "float32") for peer in self._peers}
        self._batch = AttentionBatch(heads, threads)
        q, k, v = (attention.Rows(self.rows, part.start, width) for part in self._parts)
        out = attention.Rows(self.partials[rank], 0, self.partials[rank, 0].size)
        self._launches = [
            LaunchList(
                team_of(threads),
                attention_steps(
                    each.heads,
                    self._batch,
                    Operands(q, k, v, out, cache),
                    each.rotations,
                    threads,
                    partial=True,
                ),
            )
            for each, cache in zip(layers, caches, strict=True)
        ]
        self._queries_to: dict[int, Rows | slice] = {}
        self._queries_from: dict[int, Rows | slice] = {}
        self._writes_to: dict[int, Rows | slice] = {}
        self._writes_from: dict[int, Rows | slice] = {}
        self._own = slice(0)

    def begin(self, division: Division) -> None:
        rank = self._tensors.rank
        self._own = slice(*division.bounds[rank : rank + 2])
        for peer in self._peers:
            self._queries_to[peer] = _span(division.queries(rank, peer))
            self._queries_from[peer] = _span(division.queries(peer, rank))
            self._writes_to[peer] = _span(division.writes(rank, peer))
            self._writes_from[peer] = _span(division.writes(peer, rank))
        self._batch.describe(division.batch(rank))
        self.partials[:, : division.tokens, :, 0] = -np.inf  # of those that hold nothing, nothing comes

    def run(self, layer: int, own: Operands | None) -> None:
        """Compute a layer's attention. ``own`` are the rows of this process's tokens, None if it has none.

        Afterwards ``partials`` has what belongs to these tokens. Raises PeerLostError.
        """
        if own is not None:
            self._take(own)
        outgoing = {peer: self._pack(peer) for peer in self._peers}
        incoming = {
            peer: self._incoming[peer][: self._floats(self._queries_from[peer], self._writes_from[peer])]
            for peer in self._peers
        }
        exchange(self._tensors, outgoing, incoming)
        for peer in self._peers:
            self._unpack(peer, incoming[peer])
        self._launches[layer]()
        self._return_results()

    def _take(self, own: Operands) -> None:
        count = self._own.stop - self._own.start
        for source, part in zip((own.q, own.k, own.v), self._parts, strict=True):
            whole = source.array.reshape(-1, source.distance)
            self.rows[self._own, part] = whole[:count, source.offset : source.offset + part.stop - part.start]

    def _floats(self, queries: Rows | slice, writes: Rows | slice) -> int:
        rest = int(self.rows.shape[1]) - self._wide
        return _count(queries) * self._wide + _count(writes) * rest

    def _pack(self, peer: int) -> Array:
        queries, writes = self._queries_to[peer], self._writes_to[peer]
        packed = self._outgoing[peer][: self._floats(queries, writes)]
        middle = _count(queries) * self._wide
        packed[:middle].reshape(-1, self._wide)[...] = self.rows[queries, : self._wide]
        packed[middle:].reshape(_count(writes), self.rows.shape[1] - self._wide)[...] = self.rows[writes, self._wide :]
        return packed

    def _unpack(self, peer: int, packed: Array) -> None:
        queries, writes = self._queries_from[peer], self._writes_from[peer]
        middle = _count(queries) * self._wide
        self.rows[queries, : self._wide] = packed[:middle].reshape(-1, self._wide)
        self.rows[writes, self._wide :] = packed[middle:].reshape(_count(writes), self.rows.shape[1] - self._wide)

    def _return_results(self) -> None:
        found = self.partials[self._tensors.rank]
        outgoing = {peer: np.ascontiguousarray(found[rows]) for peer, rows in self._queries_from.items()}
        incoming, apart = {}, []
        for peer, rows in self._queries_to.items():
            if isinstance(rows, slice):
                incoming[peer] = self.partials[peer, rows]
            else:
                incoming[peer] = np.empty((len(rows), *found.shape[1:]), np.float32)
                apart.append(peer)
        exchange(self._tensors, outgoing, incoming)
        for peer in apart:
            self.partials[peer, self._queries_to[peer]] = incoming[peer]


def _span(rows: Rows) -> Rows | slice:
    """A slice if the rows are neighbours, since it needs no copy."""
    if not len(rows):
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def _count(rows: Rows | slice) -> int:
    return int(rows.stop) - int(rows.start) if isinstance(rows, slice) else len(rows)


class CacheRank:
    """A decoder of which this process holds ``blocks`` blocks of the cache, and each of its peers as many others.

    All processes run each iteration, and the first one gets the logits. The layers follow the thesis of B. Jeon,
    chapter 4: everything but attention is data parallel, by tokens.
    """

    def __init__(
        self,
        compiled: CompiledDecoder,
        registry: Registry,
        tensors: Tensors,
        blocks: int,
        cache: str = "float32",
    ) -> None:
        layers, heads = compiled.decoder.layers, compiled.heads
        self._compiled = compiled
        self._tensors = tensors
        self.caches = [make_cache(heads, blocks, cache) for _ in layers]
        self._attention = CacheAttention(
            compiled.attention,
            self.caches,
            compiled.threads,
            tensors,
            compiled.buckets[-1] * tensors.size,
        )
        arena = arena_for(compiled)
        self._values: dict[int, Values] = {}
        self._merges: dict[int, list[tuple[Merge, LaunchList]]] = {}
        for tokens, parts in compiled.segments.items():
            executors = [executor_of(each, registry) for each in parts]
            self._values[tokens] = values = Values(compiled, tokens, executors, arena)
            self._merges[tokens] = [self._merge(values, place) for place in range(len(layers))]
        self._ends = LastSegments(compiled, registry, arena)

    def _merge(self, values: Values, place: int) -> tuple[Merge, LaunchList]:
        compiled = self._compiled
        out = values.operands(compiled.decoder.layers[place], self.caches[place]).out
        merge = Merge(compiled.attention[place].heads, self._attention.partials, out, compiled.threads)
        return merge, LaunchList(team_of(compiled.threads), merge.steps)

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32] | None:
        """Run an iteration, whose slices are checked. The first process gets the logits, the others None.

        Raises PeerLostError.
        """
        division = divide(slices, self._tensors.size)
        first, last = division.bounds[self._tensors.rank : self._tensors.rank + 2]
        self._attention.begin(division)
        values = None
        if first < last:
            bucket = bucket_for(self._compiled.buckets, last - first)
            values = self._values[bucket]
            ids, positions = tokens_of(slices)
            values.set_tokens(ids[first:last], positions[first:last])
        for place, layer in enumerate(self._compiled.decoder.layers):
            if values is None:
                self._attention.run(place, None)
                continue
            values.segments[place]()
            self._attention.run(place, values.operands(layer, self.caches[place]))
            merge, launch = self._merges[bucket][place]
            merge.set_rows(first, last - first)
            launch()
        return self._logits(division, values)

    def _logits(self, division: Division, values: Values | None) -> NDArray[np.float32] | None:
        rank, size = self._tensors.rank, self._tensors.size
        mine = division.wanted_of(rank)
        rows = division.wanted[mine] - division.bounds[rank]
        width = self._compiled.decoder.vocabulary
        own = np.empty((0, width), np.float32)
        if len(rows):
            assert values is not None
            own = self._ends.run(values, rows)
        if rank:
            exchange(self._tensors, {0: own}, {})
            return None
        found = np.empty((len(division.wanted), width), np.float32)
        found[mine] = own
        exchange(self._tensors, {}, {peer: found[division.wanted_of(peer)] for peer in range(1, size)})
        return found

    def close(self) -> None:
        self._values, self._merges, self.caches = {}, {}, list[LayerCache]()
