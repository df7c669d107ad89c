"""Cache Parallelism against one process: attention alone and whole decoders, in threads that share nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.api import default_registry
from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_empty
from collage.native import LaunchList, team_of
from collage.serve.attention import (
    AttentionBatch,
    Heads,
    LayerAttention,
    Merge,
    Operands,
    Rotations,
    Rows,
    attention_steps,
    make_cache,
)
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.parallel.cache_rank import CacheAttention, CacheRank, divide
from collage.serve.parallel.tensors import PeerLostError, together
from collage.serve.runner import Slice
from scripts.lib.traffic import cache_bytes
from tests.helpers.serve.parallel.fixtures import BUCKETS, Ready
from tests.helpers.serve.parallel.mixes import Mix, at_once

BLOCKS = 48
COUNTS = st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=6)


class Layer:
    """One attention, whole and divided, on the same rows."""

    def __init__(self, heads: Heads, size: int, most: int, longest: int) -> None:
        self.heads = heads
        angles = np.random.default_rng(9).uniform(0, 6, (longest, heads.rotary // 2))
        rotations = Rotations(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
        *parts, wide = heads.widths
        self.offsets = np.cumsum([0, *parts]).tolist()
        self.qkv = aligned_empty((most, sum(parts)), "float32")
        self.whole = aligned_empty((most, wide), "float32")
        self._batch = AttentionBatch(heads, 1)
        cache = make_cache(heads, BLOCKS)
        cache.keys.fill(np.nan)
        operands = self._operands(self.qkv, self.whole, cache)
        self._launch = LaunchList(team_of(1), attention_steps(heads, self._batch, operands, rotations, 1))
        self.ends = together(size)
        self.parts = []
        for end in self.ends:
            own = make_cache(heads, -(-BLOCKS // size))
            own.keys.fill(np.nan)
            attention = CacheAttention([LayerAttention(heads, rotations)], [own], 1, end, most)
            rows = aligned_empty(self.qkv.shape, "float32")
            out = aligned_empty(self.whole.shape, "float32")
            merge = Merge(heads, attention.partials, Rows(out, 0, wide), 1)
            self.parts.append((attention, self._operands(rows, out, own), rows, out, merge))

    def _operands(self, qkv: Array, out: Array, cache: object) -> Operands:
        parts = (Rows(qkv, offset, qkv.shape[1]) for offset in self.offsets[:3])
        return Operands(*parts, Rows(out, 0, out.shape[1]), cache)  # type: ignore[arg-type]

    def run(self, slices: list[Slice], random: np.random.Generator) -> tuple[Array, Array]:
        """The rows of the whole attention and of the divided one."""
        division = divide(slices, len(self.parts))
        count = division.tokens
        self.qkv[...] = random.standard_normal(self.qkv.shape)
        self._batch.fill(slices)
        self._launch()

        def part(rank: int) -> Array:
            attention, operands, rows, out, merge = self.parts[rank]
            first, last = division.bounds[rank : rank + 2]
            rows.fill(np.nan)
            out.fill(7)
            rows[: last - first] = self.qkv[first:last]
            attention.begin(division)
            attention.run(0, operands if last > first else None)
            merge.set_rows(first, last - first)
            LaunchList(team_of(1), merge.steps)()
            assert (out[last - first :] == 7).all()  # rows of others are not written
            return out[: last - first].copy()

        return self.whole[:count].copy(), np.concatenate(
            at_once([partial(part, rank) for rank in range(len(self.parts))])
        )


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "heads",
    [
        Heads(4, 2, 32, 32, False, 32**-0.5),
        Heads(3, 3, 20, 0, False, 0.3),
        Heads(40, 1, 8, 4, True, 0.4),
        Heads(4, 2, 24, 8, False, 0.3, value_dim=40),
        Heads(6, 6, 24, 0, False, 0.3, sinks=(1.0,) * 6, value_dim=8),
        Heads(2, 1, 32, 0, False, 0.4, softcap=2.0, window=40, slopes=(0.2, 0.1), sinks=(1.0, -0.5)),
    ],
)
def test_one_layer(heads: Heads, size: int) -> None:
    """Long sequences whose parts are split among threads, too, beside short ones that few processes hold."""
    layer = Layer(heads, size, 300, 400)
    mix = Mix(3, 400, BLOCKS, size)
    for counts in ([290, 3, 5], [1, 1, 0], [60, 200, 1], [1, 0, 1], [0, 0, 1], [8, 8, 8]):
        slices = mix.slices(counts, 300)
        before = sum(end.sent_bytes for end in layer.ends)
        whole, divided = layer.run(slices, mix.random)
        assert np.abs(whole - divided).max() < 1e-5
        sent = sum(end.sent_bytes for end in layer.ends) - before
        assert sent == cache_bytes(slices, heads, 1, size, 0)


@settings(max_examples=25, deadline=None)
@given(COUNTS, st.integers(2, 4), st.integers(0, 999))
def test_one_layer_on_any_mix(counts: list[list[int]], size: int, seed: int) -> None:
    layer = Layer(Heads(4, 2, 16, 8, False, 0.25, value_dim=24), size, 27, 100)
    mix = Mix(3, 100, BLOCKS, seed)
    for each in counts:
        if slices := mix.slices(each, 27):
            whole, divided = layer.run(slices, mix.random)
            assert np.abs(whole - divided).max() < 1e-5


class Ranks:
    """All processes of a decoder, as threads."""

    def __init__(self, ready: Ready, size: int, cache: str = "float32") -> None:
        self.ends = together(size)
        blocks = -(-BLOCKS // size)
        self.ranks = [CacheRank(ready.compiled, default_registry(), end, blocks, cache) for end in self.ends]

    def step(self, slices: list[Slice]) -> Array:
        found = at_once([partial(rank.step, slices) for rank in self.ranks])
        assert found[0] is not None and all(each is None for each in found[1:])
        return found[0]

    @property
    def sent_bytes(self) -> int:
        return sum(end.sent_bytes for end in self.ends)


@dataclass(frozen=True)
class Both:
    """A decoder in one process and divided."""

    ready: Ready
    whole: DecoderRunner
    ranks: Ranks


@pytest.fixture(scope="module", params=[2, 4])
def both(ready: Ready, request: pytest.FixtureRequest) -> Both:
    return Both(ready, DecoderRunner(ready.compiled, default_registry(), BLOCKS), Ranks(ready, request.param))


@settings(max_examples=12, deadline=None)
@given(COUNTS, st.integers(0, 999))
def test_any_mix_of_prefill_and_decode(both: Both, counts: list[list[int]], seed: int) -> None:
    """Logits are those of one process, and the bytes are those of the formula."""
    whole, ranks, ready = both.whole, both.ranks, both.ready
    size = len(ranks.ends)
    mix = Mix(3, 100, BLOCKS, seed)
    compiled = ready.compiled
    for each in counts:
        slices = mix.slices(each, BUCKETS[-1])
        if not slices:
            continue
        before = ranks.sent_bytes
        assert_close(ranks.step(slices), whole.step(slices))
        wanted = cache_bytes(slices, compiled.heads, len(compiled.decoder.layers), size, compiled.decoder.vocabulary)
        assert ranks.sent_bytes - before == wanted


def assert_close(found: Array, wanted: Array) -> None:
    assert found.shape == wanted.shape
    if wanted.size:
        assert np.abs(found - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())


def test_an_iteration_may_have_the_largest_bucket_of_each_process(both: Both) -> None:
    tokens = tuple(range(len(both.ranks.ends) * BUCKETS[-1]))
    found = both.ranks.step([Slice(tokens, 0, (5,), True)])
    for at in range(0, len(tokens), BUCKETS[-1]):
        row = both.whole.step([Slice(tokens[at : at + BUCKETS[-1]], at, (5,), True)])
    assert_close(found, row)


@pytest.mark.parametrize(("cache", "most"), [("bfloat16", 2e-2), ("int8", 5e-2)])
def test_rounded_caches(ready: Ready, cache: str, most: float) -> None:
    """k and v are rounded where they are stored, whoever stores them."""
    whole = DecoderRunner(ready.compiled, default_registry(), BLOCKS, cache)
    ranks = Ranks(ready, 2, cache)
    mix = Mix(3, 100, BLOCKS, 5)
    for counts in ([8, 0, 0], [3, 3, 2], [1, 1, 1], [1, 1, 1]):
        slices = mix.slices(counts, 8)
        # A last bit of q, k or v may differ with the number of tokens, and decides where halfway cases go.
        assert np.abs(ranks.step(slices) - whole.step(slices)).max() < most


def test_a_peer_that_sends_nothing_is_noticed(qwen: Ready) -> None:
    rank = CacheRank(qwen.compiled, default_registry(), together(2, limit_s=0.2)[0], BLOCKS)
    with pytest.raises(PeerLostError, match="thread 1 has sent nothing"):
        rank.step([Slice((1, 2, 3), 0, (1,), True)])
