"""A model of decode iterations on N machines: what it takes from measurements, and what follows from it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from collage.serve.attention import Heads
from scripts.lib.parallel.traffic import even_cache_bytes, tensor_bytes
from scripts.lib.parallel.wire import Wire

DATA, TENSOR, CACHE = "data", "tensor", "cache"
MODELLED = (DATA, TENSOR, CACHE)


@dataclass(frozen=True)
class Costs:
    """What was measured of one process: an iteration of b sequences without many cached tokens takes ``dense_ms[b]``,
    and each cached token of a sequence ``token_us`` more. Messages take what ``wire`` says.
    """

    dense_ms: Mapping[int, float]
    token_us: float
    wire: Wire
    heads: Heads
    layers: int
    width: int

    def dense(self, batch: int) -> float:
        """The milliseconds of everything but attention, for a bucket that holds the batch."""
        buckets = sorted(self.dense_ms)
        return self.dense_ms[buckets[min(bisect_left(buckets, batch), len(buckets) - 1)]]

    def attention(self, tokens: float) -> float:
        """The milliseconds of attention to so many cached tokens."""
        return tokens * self.token_us / 1e3


def modelled_ms(costs: Costs, kind: str, processes: int, batch: int, cached: int) -> float:
    """The milliseconds of an iteration on machines that have memory and a network card of their own.

    Data parallelism waits for the process with the most sequences. Tensor parallelism reads 1 / N of the weights in
    each process, and sends twice in each of two all-reduces a layer. Cache Parallelism computes all but attention for
    1 / N of the sequences, and sends twice a layer.
    """
    most = -(-batch // processes)
    if kind == DATA:
        return costs.dense(most) + costs.attention(most * cached)
    attention = costs.attention(batch * cached / processes)
    if kind == TENSOR:
        each = tensor_bytes(batch, costs.width, processes) / processes / 4
        return costs.dense(batch) / processes + attention + costs.layers * 4 * costs.wire.us(each) / 1e3
    each = even_cache_bytes(batch, costs.heads, processes) / processes / 2
    return costs.dense(most) + attention + costs.layers * 2 * costs.wire.us(each) / 1e3


def crossover(costs: Costs, other: str, processes: int, batch: int, longest: int) -> int | None:
    """The fewest cached tokens of each sequence from which Cache Parallelism is faster, or None up to the longest."""
    for cached in range(0, longest + 1, 32):
        if modelled_ms(costs, CACHE, processes, batch, cached) < modelled_ms(
            costs, other, processes, batch, cached
        ):
            return cached
    return None
