"""Attention on one process's share of the cache, and the merge with what the others have found."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_empty
from collage.native import LaunchList, team_of
from collage.serve import attention
from collage.serve.attention import AttentionBatch, LayerAttention, LayerCache, Operands, attention_steps
from collage.serve.parallel.division import Division, Rows
from collage.serve.parallel.tensors import Tensors, exchange

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
        """Prepare an iteration."""
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
        """Compute a layer's attention. ``own`` are the rows of this process's tokens, None where it has none.

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
        packed[middle:].reshape(_count(writes), self.rows.shape[1] - self._wide)[...] = self.rows[
            writes, self._wide :
        ]
        return packed

    def _unpack(self, peer: int, packed: Array) -> None:
        queries, writes = self._queries_from[peer], self._writes_from[peer]
        middle = _count(queries) * self._wide
        self.rows[queries, : self._wide] = packed[:middle].reshape(-1, self._wide)
        self.rows[writes, self._wide :] = packed[middle:].reshape(
            _count(writes), self.rows.shape[1] - self._wide
        )

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
    """A slice where the rows are neighbours, since it needs no copy."""
    if not len(rows):
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def _count(rows: Rows | slice) -> int:
    return int(rows.stop) - int(rows.start) if isinstance(rows, slice) else len(rows)
