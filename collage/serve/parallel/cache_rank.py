"""One process of Cache Parallelism: its share of the cache, and all but attention for its share of the tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collage.backends.registry import Registry
from collage.native import LaunchList, team_of
from collage.serve.attention import LayerCache, Merge, make_cache
from collage.serve.decoder.buckets import bucket_for
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.iteration import (
    LastSegments,
    Values,
    arena_for,
    executor_of,
    tokens_of,
)
from collage.serve.parallel.cache_attention import CacheAttention
from collage.serve.parallel.division import Division, divide
from collage.serve.parallel.tensors import Tensors, exchange
from collage.serve.runner import Slice


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
        """Compute the logits of this process's rows, and gather all in the first process."""
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
        """Free the cache and the kernels."""
        self._values, self._merges, self.caches = {}, {}, list[LayerCache]()
