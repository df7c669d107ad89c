// Attention of an item's rows to blocks of a cache, with vectors. To be included by attention.cpp alone.
//
// Up to four blocks are taken at a time: scores first, then each row's weights, then the values. So what is done for each
// row (its largest score, its sum, the factor of what it had before) is done less often.

#ifndef COLLAGE_NATIVE_KERNELS_ATTENTION_ROWS_H
#define COLLAGE_NATIVE_KERNELS_ATTENTION_ROWS_H

#include "attention_cells.h"
#include "attention_items.h"

namespace {

using namespace collage_attention;
using Buffers = collage_attention_buffers;

// The position of the first token of a request's block.
INLINE int64_t first_of(const Batch &batch, int64_t request, int64_t block) {
  return kBlock * (batch.places ? batch.places[batch.table[request] + block] : block);
}

// The state of an item's rows. A row of q has as many numbers as a head of q, filled up to whole vectors, and one of o as
// many as a head of v.
struct State {
  alignas(64) float q[kRows * kMostDim];
  alignas(64) float o[kRows * kMostDim];
  alignas(64) float scores[kRows * kSpanned];  // or weights
  float m[kRows], s[kRows];
  float slope[kRows];
  int64_t position[kRows];
};

// What is read next is prefetched meanwhile: memory is read from page to page, at each of which the processor's own
// prefetching would begin anew.
template <typename Cell>
INLINE void prefetch(const Cell *from, int64_t count) {
  constexpr int64_t line = 64 / sizeof(Cell);
  for (int64_t i = 0; i < count; i += line) __builtin_prefetch(from + i, 0, 2);
}

// Scores of R rows against a block's keys, to 32 columns.
template <int R, typename Cell>
INLINE void multiply_keys(const float *q, int64_t dim, const Cell *keys, const Cell *next, float *scores) {
  constexpr int kAtOnce = kKeyVectors<R>;
  const int64_t wide = padded(dim);
  Vector a[R][2] = {};
#pragma GCC unroll 2
  for (int half = 0; half < 2; half += kAtOnce)
    for (int64_t d = 0; d < dim; ++d) {
      Vector k[2];
      if (half == 0) prefetch(next + d * kBlock, kBlock);
      load_pair(k[0], k[1], keys + d * kBlock);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int i = half; i < half + kAtOnce; ++i) a[r][i] += q[r * wide + d] * k[i];
    }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    in_order<Cell>(a[r][0], a[r][1]);
    store(scores + r * kSpanned, a[r][0]);
    store(scores + r * kSpanned + kLanes, a[r][1]);
  }
}

// o += weights * values, for R rows and N vectors of columns. Values beyond `count` keys are not read, since what a freed
// block holds may be NaN.
template <int R, int N, typename Cell>
INLINE void multiply_columns(const float *weights, const Cell *values, const Cell *next, int64_t count, int64_t wide,
                             float *o) {
  Vector a[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) load(a[r][c], o + r * wide + c * kLanes);
#pragma GCC unroll 2
    for (int c = 0; c + 1 < N; c += 2) as_pairs<Cell>(a[r][c], a[r][c + 1]);
  }
  for (int64_t j = 0; j < count; ++j) {
    Vector v[N];
    prefetch(next + j * wide, N * kLanes);
    if constexpr (N == 1) load(v[0], values + j * wide);
#pragma GCC unroll 2
    for (int c = 0; c + 1 < N; c += 2) load_pair(v[c], v[c + 1], values + j * wide + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) a[r][c] += weights[r * kSpanned + j] * v[c];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c + 1 < N; c += 2) in_order<Cell>(a[r][c], a[r][c + 1]);
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) store(o + r * wide + c * kLanes, a[r][c]);
  }
}

// The same for all columns.
template <int R, typename Cell>
INLINE void multiply_values(const float *weights, const Cell *values, const Cell *next, int64_t count, int64_t wide,
                            float *o) {
  constexpr int kAtOnce = kValueVectors<R>;
  int64_t column = 0;
  for (; column + kAtOnce * kLanes <= wide; column += kAtOnce * kLanes)
    multiply_columns<R, kAtOnce>(weights, values + column, next + column, count, wide, o + column);
  for (; column + 2 * kLanes <= wide; column += 2 * kLanes)
    multiply_columns<R, 2>(weights, values + column, next + column, count, wide, o + column);
  if (column < wide) multiply_columns<R, 1>(weights, values + column, next + column, count, wide, o + column);
}

// Calls `multiply` for all rows, with the number of rows (as a type) and the first of them.
template <typename F>
INLINE void by_tiles(int64_t rows, F multiply) {
  int64_t row = 0;
  for (; row + kTile <= rows; row += kTile) multiply(std::integral_constant<int, kTile>(), row);
  if (kTile > 4 && row + 4 <= rows) {
    multiply(std::integral_constant<int, 4>(), row);
    row += 4;
  }
  if (row + 3 == rows) multiply(std::integral_constant<int, 3>(), row);
  if (row + 2 == rows) multiply(std::integral_constant<int, 2>(), row);
  if (row + 1 == rows) multiply(std::integral_constant<int, 1>(), row);
}

// Multiplies what belongs to each of a block's keys or values by its scale, in place.
INLINE void multiply_scales(const float *scales, int64_t rows, float *numbers) {
  for (int64_t half = 0; half < kBlock; half += kLanes) {
    Vector scale, x;
    load(scale, scales + half);
    for (int64_t row = 0; row < rows; ++row) {
      load(x, numbers + row * kSpanned + half);
      store(numbers + row * kSpanned + half, x * scale);
    }
  }
}

// Bounds a row's scores of some blocks, takes off what they lose by distance, and hides the keys before its window.
INLINE void adjust(const Shape &s, float *scores, const int64_t *first, int64_t blocks, int64_t position, float slope) {
  const Vector hidden = filled(-INFINITY);
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t half = 0; half < kBlock; half += kLanes) {
      float *const here = scores + block * kBlock + half;
      const int64_t key = first[block] + half;
      Vector x;
      load(x, here);
      if (s.softcap != 0.0f) x = tangent(x * (1.0f / s.softcap)) * s.softcap;
      if (slope != 0.0f) x += numbered(float(key - position)) * slope;
      const int64_t before = position + 1 - s.window - key;  // keys of these that are too far away
      if (s.window && before > 0) x = below(std::min(before, kLanes), hidden, x);
      store(here, x);
    }
}

// Whether `adjust` has anything to do.
INLINE bool adjusts(const Shape &s, const Buffers &b) { return s.softcap != 0.0f || s.window || b.slopes; }

// The first of an item's blocks in which one of its rows sees a key.
INLINE int64_t first_seen(const Shape &s, const Batch &batch, const Item &item) {
  int64_t block = item.block;
  if (!s.window) return block;
  const int64_t from = batch.start[item.request] + item.token + 1 - s.window;
  while (block < item.block_end && first_of(batch, item.request, block) + kBlock <= from) ++block;
  return block;
}

// Makes weights of a row's scores of some blocks, of which it sees the first `seen` keys; they may take the scores' place.
// Returns the factor of what was summed before.
template <typename Weight>
INLINE float soften(float *scores, Weight *weights, const int64_t *seen, int64_t blocks, float &m, float &s) {
  const Vector hidden = filled(-INFINITY);
  Vector highest = hidden, total = filled(0.0f), x;
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t half = 0; half < kBlock; half += kLanes) {
      float *const here = scores + block * kBlock + half;
      load(x, here);
      if (seen[block] < half + kLanes) {
        x = below(seen[block] - half, x, hidden);
        store(here, x);
      }
      highest = larger(x, highest);
    }
  const float most = std::max(m, largest(highest));
  const float from = most == -INFINITY ? 0.0f : most;  // a row of minus infinities has no weights
  for (int64_t at = 0; at < blocks * kBlock; at += kLanes) {
    load(x, scores + at);
    x -= from;
    x = exponential(x);
    total += x;
    narrow(weights + at, x);
  }
  const float keep = m == -INFINITY ? 0.0f : m == from ? 1.0f : expf(m - from);
  m = most;
  s = s * keep + sum(total);
  return keep;
}

// Multiplies a row of o by what `soften` has returned.
INLINE void multiply_row(float *o, int64_t wide, float keep) {
  if (keep == 1.0f) return;
  for (int64_t column = 0; column < wide; column += kLanes) {
    Vector x;
    load(x, o + column);
    store(o + column, x * keep);
  }
}

// Where a span of an item's blocks has keys and values, and where each of its blocks begins in the sequence.
struct Span {
  int64_t blocks, first[kSpan], place[kSpan];  // the place in the cache is that of the item's first K/V head
};

// Attends to the blocks of a span. `last` is the item's last position, and `next` the place in the cache that is read next.
template <typename Cell>
INLINE void attend_span(const Shape &s, const Buffers &b, const Item &item, State &state, const Span &span, int64_t last,
                        int64_t next) {
  const int64_t each = rows_of_one(item), wide = padded(s.dim), value_wide = value_width(s), heads = item.kv_heads;
  const int64_t key_cells = s.dim * kBlock, value_cells = kBlock * value_wide;
  const Cell *const keys = static_cast<const Cell *>(b.keys), *const values = static_cast<const Cell *>(b.values);
  for (int64_t i = 0; i < span.blocks; ++i)
    for (int64_t kv = 0; kv < heads; ++kv) {
      const int64_t at = span.place[i] + kv;
      const Cell *const here = keys + at * key_cells;
      const Cell *const then = kv + 1 < heads         ? here + key_cells
                               : i + 1 < span.blocks ? keys + span.place[i + 1] * key_cells
                                                     : values + span.place[0] * value_cells;
      const float *const q = state.q + kv * each * wide;
      float *const scores = state.scores + kv * each * kSpanned + i * kBlock;
      by_tiles(each, [&](auto rows, int64_t row) __attribute__((always_inline)) {
        multiply_keys<rows()>(q + row * wide, s.dim, here, then, scores + row * kSpanned);
      });
      if constexpr (kScaled<Cell>) multiply_scales(b.scales + at * 2 * kBlock, each, scores);
    }
  for (int64_t row = 0; row < each * heads; ++row) {
    int64_t seen[kSpan];
    for (int64_t i = 0; i < span.blocks; ++i) seen[i] = std::min(state.position[row] + 1 - span.first[i], kBlock);
    float *const scores = state.scores + row * kSpanned;
    if (adjusts(s, b)) adjust(s, scores, span.first, span.blocks, state.position[row], state.slope[row]);
    multiply_row(state.o + row * value_wide, value_wide,
                 soften(scores, scores, seen, span.blocks, state.m[row], state.s[row]));
  }
  for (int64_t i = 0; i < span.blocks; ++i) {
    const int64_t count = std::min(kBlock, last + 1 - span.first[i]);
    for (int64_t kv = 0; kv < heads; ++kv) {
      const int64_t at = span.place[i] + kv;
      const Cell *const here = values + at * value_cells;
      const Cell *const then = kv + 1 < heads         ? here + value_cells
                               : i + 1 < span.blocks ? values + span.place[i + 1] * value_cells
                                                     : keys + next * key_cells;
      float *const weights = state.scores + kv * each * kSpanned + i * kBlock;
      float *const o = state.o + kv * each * value_wide;
      // Weights beyond `count` may become NaN, and are not read.
      if constexpr (kScaled<Cell>) multiply_scales(b.scales + (at * 2 + 1) * kBlock, each, weights);
      by_tiles(each, [&](auto rows, int64_t row) __attribute__((always_inline)) {
        multiply_values<rows()>(weights + row * kSpanned, here, then, count, value_wide, o + row * value_wide);
      });
    }
  }
}

}  // namespace
#endif
