// Attention to blocks of a cache of bfloat16 on AMX, the processor's matrix unit. To be included by attention.cpp alone.
//
// Up to four blocks are taken at a time, so that what is done for each row (its largest score, its sum, the factor of what
// it had before) is done less often. Scores and sums of values are products of tiles: q and the weights are rounded to
// bfloat16, as k and v are in the cache, and sums are float32. For that, pairs of elements of k, and pairs of tokens of v,
// have to lie beside each other, so blocks are copied in that order. Up to 32 rows are two tiles of the same height, which
// overlap in one row where their number is odd.

#ifndef COLLAGE_NATIVE_KERNELS_ATTENTION_TILES_H
#define COLLAGE_NATIVE_KERNELS_ATTENTION_TILES_H

#include "attention_cells.h"
#include "kernels.h"

namespace {

using collage_attention::kBlock;
using collage_attention::kMostDim;
using collage_attention::kRows;
using collage_attention::kSpan;
using collage_attention::kSpanned;

constexpr int64_t kTileRows = 16;
constexpr int64_t kTilePairs = 16;             // of a step: 32 elements of k, or the 32 tokens of a block
constexpr int64_t kDeep = 2 * kTilePairs;
constexpr int64_t kLeastTiled = 8;             // rows from which on tiles are worth it

// What rows and blocks are as factors of tiles.
struct TileState {
  alignas(64) uint16_t q[kRows * kMostDim];      // [row][dim, filled up with zeros to whole steps]
  alignas(64) uint32_t keys[kMostDim / 2 * kBlock];  // [pair of elements][token]
  alignas(64) uint32_t values[kSpan * kTilePairs * kMostDim];  // [block][pair of tokens][column]
  alignas(64) float scores[kRows * kSpanned];
  alignas(64) uint16_t weights[kRows * kSpanned];
  int64_t height;                                // of the tiles as they are set up, 0 for not at all
};

INLINE int64_t whole_steps(int64_t dim) { return (dim + kDeep - 1) / kDeep * kDeep; }

#if COLLAGE_AMX

// Two rows of `count` numbers of bfloat16 beside each other; no second row is zeros.
INLINE void pair_up(const uint16_t *first, const uint16_t *second, int64_t count, uint32_t *to) {
  for (int64_t i = 0; i < count; i += kLanes) {
    Halves low, high = {};
    memcpy(&low, first + i, sizeof low);
    if (second) memcpy(&high, second + i, sizeof high);
    const Integers both = __builtin_convertvector(low, Integers) | (__builtin_convertvector(high, Integers) << 16);
    memcpy(to + i, &both, sizeof both);
  }
}

// The rows of q, which are filled up to whole vectors, rounded, with zeros up to whole steps.
INLINE void round_rows(const float *q, int64_t rows, int64_t dim, TileState &tiles) {
  const int64_t wide = collage_attention::padded(dim);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t d = 0; d < whole_steps(dim); d += kLanes) {
      Vector x;
      load(x, q + row * wide + d);
      const Integers lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
      narrow(tiles.q + row * kMostDim + d, lane + int32_t(d) < int32_t(dim) ? x : Vector{});
    }
}

// Text of an instruction, so that the compiler needs no option for it. What tiles read is in memory by then.
#define TILE_LOAD(tile, from, row) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"(int64_t(row)) : "memory")
#define TILE_STORE(tile, to, row) \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(int64_t(row)) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::)
#define TILE_DOTS(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::)

// Tiles 0 to 3 have sums and 4 and 5 the rows' factors, in `height` rows; 6 and 7 have a block's.
INLINE void configure_tiles(TileState &t, int64_t height) {
  if (t.height == height) return;
  t.height = height;
  alignas(64) uint8_t c[64] = {1};
  for (int tile = 0; tile < 8; ++tile) {
    c[16 + 2 * tile] = 64;
    c[48 + tile] = uint8_t(tile < 6 ? height : kTilePairs);
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(c));
}

// Threads that hold tiles cost the system more to switch.
INLINE void release_tiles(TileState &t) {
  if (t.height) __asm__ volatile("tilerelease" ::);
  t.height = 0;
}

// Scores of `rows` rows against the keys that are in order, to 32 columns of `scores`.
INLINE void tile_scores(const TileState &t, const uint16_t *q, int64_t rows, int64_t dim, float *scores) {
  const int64_t second = rows - t.height, deep = whole_steps(dim);
  const uint16_t *const lower = q + second * kMostDim;
  TILE_ZERO(0);
  TILE_ZERO(1);
  TILE_ZERO(2);
  TILE_ZERO(3);
  for (int64_t d = 0; d < deep; d += kDeep) {
    const uint32_t *const keys = t.keys + d / 2 * kBlock;
    TILE_LOAD(4, q + d, kMostDim * 2);
    TILE_LOAD(6, keys, kBlock * 4);
    TILE_LOAD(7, keys + kLanes, kBlock * 4);
    TILE_DOTS(0, 4, 6);
    TILE_DOTS(1, 4, 7);
    if (second) {
      TILE_LOAD(5, lower + d, kMostDim * 2);
      TILE_DOTS(2, 5, 6);
      TILE_DOTS(3, 5, 7);
    }
  }
  float *const below = scores + second * kSpanned;
  TILE_STORE(0, scores, kSpanned * 4);
  TILE_STORE(1, scores + kLanes, kSpanned * 4);
  if (second) {
    TILE_STORE(2, below, kSpanned * 4);
    TILE_STORE(3, below + kLanes, kSpanned * 4);
  }
}

// o += weights * values of `blocks` blocks for `rows` rows of `wide` numbers.
INLINE void tile_values(const TileState &t, int64_t rows, int64_t blocks, int64_t wide, float *o) {
  const int64_t second = rows - t.height;
  float *const below = o + second * wide;
  const uint16_t *const lower = t.weights + second * kSpanned;
  for (int64_t column = 0; column < wide; column += kLanes) {
    TILE_LOAD(0, o + column, wide * 4);
    if (second) TILE_LOAD(1, below + column, wide * 4);  // before a row of both is written
    for (int64_t block = 0; block < blocks; ++block) {
      TILE_LOAD(6, t.values + block * kTilePairs * wide + column, wide * 4);
      TILE_LOAD(4, t.weights + block * kBlock, kSpanned * 2);
      TILE_DOTS(0, 4, 6);
      if (second) {
        TILE_LOAD(5, lower + block * kBlock, kSpanned * 2);
        TILE_DOTS(1, 5, 6);
      }
    }
    TILE_STORE(0, o + column, wide * 4);
    if (second) TILE_STORE(1, below + column, wide * 4);
  }
}

// A block's keys in the order of tiles.
INLINE void order_keys(TileState &t, const uint16_t *keys, int64_t dim) {
  for (int64_t d = 0; d < dim; d += 2)
    pair_up(keys + d * kBlock, d + 1 < dim ? keys + (d + 1) * kBlock : nullptr, kBlock, t.keys + d / 2 * kBlock);
  const int64_t done = (dim + 1) / 2 * kBlock;
  memset(t.keys + done, 0, (whole_steps(dim) / 2 * kBlock - done) * sizeof *t.keys);
}

// A block's values in that order. Those beyond `count` tokens are zeros, since what a freed block holds may be NaN.
INLINE void order_values(const uint16_t *values, int64_t count, int64_t wide, uint32_t *to) {
  for (int64_t token = 0; token < kBlock; token += 2, to += wide) {
    if (token < count)
      pair_up(values + token * wide, token + 1 < count ? values + (token + 1) * wide : nullptr, wide, to);
    else
      memset(to, 0, wide * sizeof *to);
  }
}

#endif

}  // namespace
#endif
