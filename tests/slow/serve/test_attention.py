"""The native attention against float64 numpy, on random block tables, lengths, splits and heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.errors import CollageError
from collage.graph.dataflow import Array, np_dtype
from collage.kernel.buffers import aligned_empty
from collage.native import LaunchList, team_of
from collage.native.kernel_library import amx_problem
from collage.serve.attention import (
    BLOCK_TOKENS,
    AttentionBatch,
    Heads,
    Operands,
    Rotations,
    Rows,
    attention_problem,
    attention_steps,
    make_cache,
)
from collage.serve.runner import Slice

MOST = 1200
TILE_ERROR = 1e-5 if amx_problem() else 1.5e-2
"""Tiles round q and the weights, too: each to 2 ** -9 of itself at most, with values that are normal numbers."""


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"kv_heads": 0},
            {"kv_heads": 3},
            {"heads": 2},
            {"dim": 0},
            {"dim": 257},
            {"rotary": 10},
            {"rotary": 3},
        ),
        *({"value_dim": -1}, {"value_dim": 257}, {"softcap": float("nan")}, {"window": -1}),
        *({"slopes": (0.5,)}, {"sinks": (0.5,)}),
    ],
    ids=str,
)
def test_heads_that_the_kernel_cannot_compute(wrong: dict[str, Any]) -> None:
    """A damaged file may ask for them; the kernel would divide by zero or write beyond its rows."""
    usual = {"heads": 4, "kv_heads": 4, "dim": 8, "rotary": 0, "interleaved": False, "scale": 1.0}
    with pytest.raises(ValueError, match="cannot"):
        Heads(**{**usual, **wrong})


@pytest.mark.parametrize(
    ("offset", "distance", "dtype"),
    [(-1, 96, "float32"), (65, 96, "float32"), (1 << 40, 96, "float32"), (0, 0, "float32"), (0, 96, "int32")],
)
def test_rows_that_are_too_short(offset: int, distance: int, dtype: str) -> None:
    """A damaged file may name them; the kernel takes addresses."""
    heads = Heads(4, 4, 8, 0, False, 1.0)
    cache, batch = make_cache(heads, 2), AttentionBatch(heads, 1)
    angles = Rotations(*(np.zeros((MOST, 0), np.float32) for _ in range(2)))
    out = Rows(aligned_empty((5, 32), "float32"), 0, 32)
    whole = Rows(aligned_empty((5, 96), "float32"), 0, 96)
    attention_steps(heads, batch, Operands(whole, whole, whole, out, cache), angles, 1)
    short = Rows(aligned_empty((5, 96), dtype), offset, distance)
    with pytest.raises(CollageError, match=r"k (is int32|has 1920 bytes)|goes through a buffer"):
        attention_steps(heads, batch, Operands(whole, short, whole, out, cache), angles, 1)


def rotated(x: Array, cos: Array, sin: Array, heads: Heads) -> Array:
    """x [token, head, dim] in float64, rotated by its tokens' angles [token, rotary / 2]."""
    found = x.astype(np.float64).copy()
    half, end = heads.rotary // 2, heads.rotary
    first, second = (slice(0, end, 2), slice(1, end, 2)) if heads.interleaved else (slice(0, half), slice(half, end))
    a, b = found[..., first].copy(), found[..., second].copy()
    found[..., first] = a * cos[:, None] - b * sin[:, None]
    found[..., second] = b * cos[:, None] + a * sin[:, None]
    return found


class Sequence:
    """A sequence with its keys and values so far, which the reference keeps apart from the cache."""

    def __init__(self, blocks: tuple[int, ...], heads: Heads) -> None:
        self.blocks = blocks
        self.keys = np.zeros((0, heads.kv_heads, heads.dim))
        self.values = np.zeros((0, heads.kv_heads, heads.value_dim))


def expected(seq: Sequence, q: Array, start: int, heads: Heads) -> Array:
    """Attention of rows q [token, head, dim] on all that the sequence holds up to each of them."""
    groups = heads.heads // heads.kv_heads
    keys, values = (each.repeat(groups, 1).swapaxes(0, 1) for each in (seq.keys, seq.values))
    after = np.arange(len(seq.keys)) - (start + np.arange(len(q)))[:, None]  # how far: [token, key]
    scores = q.swapaxes(0, 1) @ keys.swapaxes(1, 2) * heads.scale  # [head, token, key]
    if heads.softcap:
        scores = heads.softcap * np.tanh(scores / heads.softcap)
    if heads.slopes:
        scores += np.array(heads.slopes)[:, None, None] * after
    seen = (after <= 0) & (after > -heads.window) if heads.window else after <= 0
    scores[:, ~seen] = -np.inf
    sinks = np.array(heads.sinks)[:, None, None] if heads.sinks else -np.inf
    most = np.maximum(scores.max(-1, keepdims=True), sinks)
    weights = np.exp(scores - most)
    return (weights / (weights.sum(-1, keepdims=True) + np.exp(sinks - most)) @ values).swapaxes(0, 1)


def rounded(x: Array, dtype: str) -> Array:
    """x [token, head, dim] as a cache of this type holds it, in float64."""
    x = x.astype(np.float32)
    if dtype != "int8":
        return x.astype(np_dtype(dtype)).astype(np.float64)
    most = np.abs(x).max(-1, keepdims=True)
    steps = x * (np.float32(127) / most)
    return np.trunc(steps + np.copysign(np.float32(0.5), steps)).astype(np.float64) * (most / np.float32(127))


def iterate(
    heads: Heads,
    lengths: list[list[int]],
    threads: int,
    seed: int,
    dtype: str = "float32",
    compared: str | None = None,
) -> float:
    """Runs iterations, each with so many new tokens of every sequence, and returns the largest error.

    It is the error against attention on keys and values that are rounded to the type ``compared``, by default the
    cache's.
    """
    compared = compared or dtype
    random = np.random.default_rng(seed)
    totals = [sum(each) for each in zip(*lengths, strict=True)]
    counts = [-(-total // BLOCK_TOKENS) for total in totals]
    ids = random.permutation(sum(counts) + 3).astype(int).tolist()
    sequences = []
    for count in counts:
        sequences.append(Sequence(tuple(ids[:count]), heads))
        ids = ids[count:]
    cache = make_cache(heads, sum(counts) + 3, dtype)
    cache.scales.fill(np.nan)  # as a freed block may be
    if dtype != "int8":
        cache.keys.fill(np.nan)
        cache.values[..., : heads.value_dim] = np.nan
    angles = random.uniform(0, 6, (MOST, heads.rotary // 2))
    rotations = Rotations(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    batch = AttentionBatch(heads, threads)
    at_k, at_v, distance = np.cumsum(heads.widths[:3]).tolist()
    wide = heads.widths[3]
    worst = 0.0
    starts = [0] * len(sequences)
    for new in lengths:
        rows = sum(new)
        qkv = aligned_empty((rows + 2, distance), "float32")  # q, k and v beside each other, and padding
        qkv[...] = random.standard_normal(qkv.shape)
        out = aligned_empty((rows + 2, wide), "float32")
        out.fill(7)
        operands = Operands(
            Rows(qkv, 0, distance), Rows(qkv, at_k, distance), Rows(qkv, at_v, distance),
            Rows(out, 0, wide), cache,
        )  # fmt: skip
        part = [(s, n, start) for s, n, start in zip(sequences, new, starts, strict=True) if n]
        batch.fill([Slice((0,) * n, start, s.blocks, True) for s, n, start in part])
        LaunchList(team_of(threads), attention_steps(heads, batch, operands, rotations, threads))()
        at = 0
        for seq, count, start in part:
            here = qkv[at : at + count]
            cos, sin = (each[start : start + count].astype(np.float64) for each in (rotations.cos, rotations.sin))
            q = rotated(here[:, :at_k].reshape(count, heads.heads, heads.dim), cos, sin, heads)
            k = rotated(here[:, at_k:at_v].reshape(count, heads.kv_heads, heads.dim), cos, sin, heads)
            v = here[:, at_v:].reshape(count, heads.kv_heads, heads.value_dim)
            seq.keys = np.concatenate([seq.keys, rounded(k, compared)])
            seq.values = np.concatenate([seq.values, rounded(v, compared)])
            want = expected(seq, q, start, heads).reshape(count, wide)
            worst = max(worst, float(np.abs(out[at : at + count] - want).max()))
            at += count
        assert (out[rows:] == 7).all()  # padding is not written
        starts = [a + b for a, b in zip(starts, new, strict=True)]
    return worst


TWO_SIZES = (
    Heads(4, 4, 192, 0, False, 192**-0.5, value_dim=128),  # as DeepSeek-V3's
    Heads(6, 2, 24, 8, True, 0.2, value_dim=40),  # another number of vectors, and values that fill none
    Heads(3, 1, 8, 8, False, 0.4, value_dim=256),
    Heads(40, 1, 33, 0, False, 0.2, value_dim=1),
)
"""Heads whose v has another size than q and k."""


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_long_sequences_are_split_and_merged(threads: int) -> None:
    heads = Heads(4, 2, 32, 32, False, 32**-0.5)
    assert iterate(heads, [[1000, 31, 256], [1, 1, 1], [7, 40, 3]], threads, 0) < 1e-5


@pytest.mark.parametrize(
    "heads",
    [
        Heads(3, 3, 64, 0, False, 0.125),
        Heads(80, 2, 16, 8, False, 0.25),  # a group of more heads than an item has rows
        Heads(4, 1, 20, 20, True, 0.3),  # a head that is no multiple of a vector
        Heads(8, 4, 128, 64, True, 128**-0.5),
        Heads(2, 1, 256, 256, False, 1 / 16),
        *TWO_SIZES,
    ],
)
def test_heads(heads: Heads) -> None:
    assert iterate(heads, [[33, 1, 0], [1, 300, 2], [5, 1, 64]], 2, 1) < 1e-5


SLOPES = (0.5, 0.25, 0.125, 0.0625)


SCORINGS = (
    Heads(4, 2, 32, 0, False, 1.0, softcap=3.0),
    Heads(4, 2, 32, 0, False, 0.2, slopes=SLOPES),
    Heads(4, 2, 32, 32, False, 0.2, window=1),
    Heads(4, 2, 32, 0, False, 0.2, window=100),
    Heads(4, 4, 20, 0, False, 0.2, window=32),
    Heads(4, 1, 64, 0, False, 0.5, softcap=2.0, window=333, slopes=SLOPES),
    Heads(4, 2, 32, 0, False, 0.2, window=100, sinks=(2.0, -1.0, 100.0, -1e4)),
    Heads(4, 2, 24, 0, False, 0.2, 2.0, 333, SLOPES, (2.0, -1.0, 100.0, -1e4), value_dim=40),
)


@pytest.mark.parametrize("heads", SCORINGS)
def test_how_keys_are_scored(heads: Heads) -> None:
    """Softcaps, biases by distance and windows, in chunks and one by one, of sequences that are split and merged."""
    lengths = [[1000, 31, 256, 0], [1, 1, 1, 1], [7, 40, 3, 1], [1, 1, 1, 1]]
    assert iterate(heads, lengths, 2, 8) < 1e-5
    assert iterate(heads, [[1, 1, 1]] * 60, 2, 8, "bfloat16") < 1e-5  # too few rows for tiles
    # Some of these scores are larger than usual, and with them what rounding q to bfloat16 changes of them.
    assert iterate(heads, lengths, 2, 8, "bfloat16") < 2 * TILE_ERROR
    assert iterate(heads, lengths, 2, 8, "int8") < 1e-5


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 90), min_size=3, max_size=3), min_size=1, max_size=4),
    st.sampled_from(
        [
            Heads(4, 2, 16, 16, False, 0.25),
            Heads(6, 6, 8, 4, True, 0.4),
            Heads(4, 2, 16, 0, False, 0.5, softcap=1.5, window=37, slopes=SLOPES),
            Heads(4, 2, 16, 0, False, 0.5, sinks=SLOPES),
            Heads(4, 2, 8, 8, False, 0.5, value_dim=20),
        ]
    ),
    st.integers(0, 1000),
)
def test_any_mix_of_chunks(lengths: list[list[int]], heads: Heads, seed: int) -> None:
    assert iterate(heads, lengths, 2, seed) < 1e-5


@pytest.mark.parametrize(("streams", "threads"), [(7, 1), (40, 2)])
@pytest.mark.parametrize("heads", [Heads(7, 7, 64, 64, False, 0.2), *TWO_SIZES[:2]])
def test_streams_share_items_among_heads(heads: Heads, streams: int, threads: int) -> None:
    """With many streams an item has several K/V heads: 2 to all of them, and fewer in the last item of a stream."""
    lengths = [40 + 9 * number for number in range(streams)]
    assert iterate(heads, [lengths, [1] * streams, [1, 2, 3] + [1] * (streams - 3)], threads, 6) < 1e-5


def test_a_stream_has_the_same_numbers_whatever_runs_beside_it() -> None:
    heads, streams = Heads(12, 12, 64, 0, False, 0.125), 24
    random = np.random.default_rng(0)
    cache = make_cache(heads, streams * 10)
    cache.keys[...] = random.standard_normal(cache.keys.shape)
    cache.values[...] = random.standard_normal(cache.values.shape)
    qkv = random.standard_normal((streams, 3 * 768)).astype(np.float32)
    empty = np.zeros((MOST, 0), np.float32)

    def attended(first: int, count: int) -> Array:
        out = np.full((count, 768), np.nan, np.float32)
        operands = Operands(*(Rows(qkv[first:], 768 * part, 3 * 768) for part in range(3)), Rows(out, 0, 768), cache)
        batch = AttentionBatch(heads, 2)
        steps = attention_steps(heads, batch, operands, Rotations(empty, empty), 2)
        blocks = [tuple(range(10 * each, 10 * each + 10)) for each in range(first, first + count)]
        batch.fill([Slice((0,), 300, each, True) for each in blocks])
        LaunchList(team_of(2), steps)()
        return out

    together = attended(0, streams)
    for stream in range(streams):
        assert np.array_equal(attended(stream, 1)[0], together[stream])


def test_scores_of_any_size() -> None:
    """Large scores do not overflow, and one key may take all the weight."""
    assert iterate(Heads(2, 2, 16, 0, False, 40.0), [[40, 3, 1]], 2, 3) < 1e-4


@pytest.mark.parametrize(
    "heads",
    [
        Heads(6, 2, 64, 0, False, 0.125),
        Heads(2, 1, 20, 0, False, 0.2),
        Heads(4, 4, 192, 0, False, 192**-0.5, value_dim=128),
        Heads(6, 2, 24, 0, False, 0.2, value_dim=40),
    ],
)
def test_cache_in_bfloat16(heads: Heads) -> None:
    """Keys and values are rounded to the nearest bfloat16, to even from halfway; without tiles nothing else is."""
    assert iterate(heads, [[2, 1, 1]] + [[1, 1, 1]] * 40, 2, 4, "bfloat16") < 1e-5
    assert iterate(heads, [[300, 31, 5], [1, 1, 1], [7, 40, 3]], 2, 4, "bfloat16") < TILE_ERROR


@pytest.mark.parametrize(
    "heads",
    [
        Heads(3, 3, 64, 0, False, 0.125),
        Heads(80, 2, 16, 8, False, 0.25),
        Heads(16, 1, 20, 0, True, 0.3),  # 16 rows of one K/V head, and steps that are not whole
        Heads(8, 4, 128, 0, False, 128**-0.5),
        Heads(18, 2, 33, 0, False, 0.2),  # an odd number of elements
        Heads(2, 1, 256, 0, False, 1 / 16),
        Heads(4, 4, 192, 0, False, 192**-0.5, value_dim=128),
        Heads(18, 2, 33, 0, False, 0.2, value_dim=80),
    ],
)
@pytest.mark.parametrize("rows", [7, 16, 17, 33, 100])
def test_tiles_of_every_height(heads: Heads, rows: int) -> None:
    """One and two tiles of rows, one to four blocks at a time and more, and blocks that are not full."""
    lengths = [[rows, 140 + rows, 0], [rows, 1, rows], [1, rows, 33]]
    assert iterate(heads, lengths, 2, rows, "bfloat16") < TILE_ERROR + 1e-5


EIGHT_BITS = [
    Heads(6, 2, 64, 0, False, 0.125),
    Heads(2, 1, 20, 0, False, 0.2),
    Heads(80, 2, 16, 0, False, 0.25),
    Heads(2, 2, 256, 0, False, 1 / 16),
    Heads(4, 4, 192, 0, False, 192**-0.5, value_dim=128),
    Heads(6, 2, 24, 0, False, 0.2, value_dim=40),
]
MIXED = [[300, 31, 5], [1, 1, 1], [7, 40, 3]]


@pytest.mark.parametrize("heads", EIGHT_BITS)
def test_cache_in_8_bits(heads: Heads) -> None:
    """Keys and values are the nearest multiples of a scale of each token and head, and nothing else is rounded."""
    assert iterate(heads, MIXED, 2, 4, "int8") < 1e-5


@pytest.mark.parametrize("heads", [*EIGHT_BITS, Heads(4, 2, 32, 32, False, 0.2), Heads(8, 4, 64, 64, True, 0.125)])
def test_the_error_of_a_cache_in_8_bits(heads: Heads) -> None:
    """What docs/decoders.md says of normal numbers, against float64 on what was not rounded."""
    error = iterate(heads, MIXED, 2, 4, "int8", compared="float64")
    assert 1e-4 < error < 3e-2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("dim", "value_dim", "cells"), [(192, 128, 320), (128, 192, 320), (24, 20, 56)])
def test_a_block_has_the_bytes_of_its_keys_and_values(dim: int, value_dim: int, cells: int, dtype: str) -> None:
    """Keys have no room for the size of values, nor the other way; values are filled up to vectors of 16."""
    heads = Heads(4, 2, dim, 0, False, 1.0, value_dim=value_dim)
    cache = make_cache(heads, 3, dtype)
    held = cache.keys.nbytes + cache.values.nbytes + cache.scales.nbytes
    scales = 2 * 4 if dtype == "int8" else 0
    assert held == 3 * heads.block_bytes(dtype)
    assert heads.block_bytes(dtype) == 2 * BLOCK_TOKENS * (cells * np_dtype(dtype).itemsize + scales)


def test_8_bits_of_zeros_and_of_what_is_not_finite() -> None:
    """Zeros are zeros, tiny numbers do no harm, and a token with NaN or infinity spoils only what sees it."""
    heads = Heads(1, 1, 16, 0, False, 1.0)
    cache = make_cache(heads, 3, "int8")
    batch = AttentionBatch(heads, 2)
    qkv = aligned_empty((4, 48), "float32")
    qkv[...] = 1
    qkv[0, 16:] = 0
    qkv[1, 16:] = 1e-38
    qkv[2, 20] = np.inf
    qkv[3, 40] = np.nan
    out = aligned_empty((4, 16), "float32")
    rows = [Rows(qkv, offset, 48) for offset in (0, 16, 32)]
    empty = np.zeros((MOST, 0), np.float32)
    steps = attention_steps(heads, batch, Operands(*rows, Rows(out, 0, 16), cache), Rotations(empty, empty), 2)
    batch.fill([Slice((0, 0), 0, (0,), True), Slice((0,), 0, (1,), True), Slice((0,), 0, (2,), True)])
    LaunchList(team_of(2), steps)()
    assert (np.abs(out[:2]) < 1e-30).all()
    assert np.isnan(out[2:]).all()


def test_a_library_with_other_structs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention_problem() == ""
    monkeypatch.setattr("collage.serve.attention._sizes", lambda: (112, 144, 48))
    assert "from older sources" in attention_problem()
