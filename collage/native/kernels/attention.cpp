// Attention of packed tokens over a paged cache.
//
// An item (see attention_plan.cpp) is a tile of rows against a part of the sequence. Its partial result is (m, s, o): the
// largest score, the sum of exp(score - m), and the values weighted with exp(score - m). Partial results of other parts
// of the sequence are merged by their m and s, whether other threads or other processes made them.
//
// Keys lie transposed, so that the scores of 32 keys are two vectors, and products need no sums across lanes. Vectors
// have 16 numbers. The code is compiled for AVX-512, for AVX2 (setup.py), whose registers have half a vector, and where the
// processor is no x86 for what there is.

#include "attention.h"

#include <math.h>
#include <string.h>

#include <algorithm>

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are never passed between functions that are not inlined

#include "amx_gemm.h"
#include "attention_cells.h"
#include "attention_items.h"
#include "attention_store.h"
#include "attention_tiles.h"
#include "kernels.h"

namespace {

using namespace collage_attention;
using Buffers = collage_attention_buffers;
using Partials = collage_attention_partials;

constexpr int64_t kSent = 2;  // floats before an o that another process gets: m and s

// The position of the first token of a request's block.
INLINE int64_t first_of(const Batch &batch, int64_t request, int64_t block) {
  return kBlock * (batch.places ? batch.places[batch.table[request] + block] : block);
}

// The keys and values of one block and head, and those that are read next, which are prefetched meanwhile: memory is read
// from page to page, at each of which the processor's own prefetching would begin anew.
template <typename Cell>
struct Cells {
  const Cell *keys, *values;
  const Cell *next_keys, *next_values;
};

template <typename Cell>
INLINE void prefetch(const Cell *from, int64_t count) {
  constexpr int64_t line = 64 / sizeof(Cell);
  for (int64_t i = 0; i < count; i += line) __builtin_prefetch(from + i, 0, 2);
}

// Scores of R rows against a block's keys: [R][32].
template <int R, typename Cell>
INLINE void multiply_keys(const float *q, int64_t dim, const Cell *keys, const Cell *next, float *scores) {
  constexpr int kAtOnce = kKeyVectors<R>;
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
        for (int i = half; i < half + kAtOnce; ++i) a[r][i] += q[r * kMostDim + d] * k[i];
    }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    in_order<Cell>(a[r][0], a[r][1]);
    store(scores + r * kBlock, a[r][0]);
    store(scores + r * kBlock + kLanes, a[r][1]);
  }
}

// o = o * keep + weights * values, for R rows and N vectors of columns. Values beyond `count` keys are not read, since
// what a freed block holds may be NaN.
template <int R, int N, typename Cell>
INLINE void multiply_values(const float *weights, const float *keep, const Cell *values, const Cell *next,
                            int64_t count, int64_t wide, float *o) {
  Vector a[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) {
      load(a[r][c], o + r * kMostDim + c * kLanes);
      a[r][c] *= keep[r];
    }
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
      for (int c = 0; c < N; ++c) a[r][c] += weights[r * kBlock + j] * v[c];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c + 1 < N; c += 2) in_order<Cell>(a[r][c], a[r][c + 1]);
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) store(o + r * kMostDim + c * kLanes, a[r][c]);
  }
}

// Multiplies what belongs to each of a block's keys or values by its scale, in place, for R rows.
template <int R>
INLINE void multiply_scales(const float *scales, float *numbers) {
  for (int64_t half = 0; half < kBlock; half += kLanes) {
    Vector scale;
    load(scale, scales + half);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Vector x;
      load(x, numbers + r * kBlock + half);
      store(numbers + r * kBlock + half, x * scale);
    }
  }
}

// The state of an item's rows.
struct State {
  alignas(64) float q[kRows * kMostDim];
  alignas(64) float o[kRows * kMostDim];
  float m[kRows], s[kRows];
  int64_t position[kRows];
};

// Makes weights of scores, in place, for the keys that the row sees. Returns the factor of what was summed before.
INLINE float soften(float *scores, int64_t seen, float &m, float &s) {
  Vector x0, x1;
  if (seen <= 0) {
    x0 = x1 = filled(0.0f);
    store(scores, x0);
    store(scores + kLanes, x1);
    return 1.0f;
  }
  load(x0, scores);
  load(x1, scores + kLanes);
  const Vector hidden = filled(-INFINITY);
  x0 = below(seen, x0, hidden);
  x1 = below(seen - kLanes, x1, hidden);
  const float most = std::max(m, largest(larger(x0, x1)));
  const float from = most == -INFINITY ? 0.0f : most;  // a row of minus infinities has no weights
  x0 -= from;
  x1 -= from;
  x0 = exponential(x0);
  x1 = exponential(x1);
  store(scores, x0);
  store(scores + kLanes, x1);
  const float keep = m == -INFINITY ? 0.0f : m == from ? 1.0f : expf(m - from);
  m = most;
  s = s * keep + sum(x0 + x1);
  return keep;
}

template <int R, typename Cell>
INLINE void attend_tile(const Shape &s, State &state, int64_t row, int64_t first, int64_t count,
                        const Cells<Cell> &cells, const float *scales) {
  alignas(64) float scores[R * kBlock];
  float keep[R];
  const int64_t wide = padded(s.dim);
  multiply_keys<R>(state.q + row * kMostDim, s.dim, cells.keys, cells.next_keys, scores);
  if constexpr (kScaled<Cell>) multiply_scales<R>(scales, scores);
  for (int r = 0; r < R; ++r)
    keep[r] = soften(scores + r * kBlock, std::min(state.position[row + r] + 1 - first, kBlock), state.m[row + r],
                     state.s[row + r]);
  if constexpr (kScaled<Cell>) multiply_scales<R>(scales + kBlock, scores);  // of those that nobody sees, nothing is read
  float *const o = state.o + row * kMostDim;
  const Cell *const values = cells.values, *const next = cells.next_values;
  int64_t column = 0;
  constexpr int kAtOnce = kValueVectors<R>;
  for (; column + kAtOnce * kLanes <= wide; column += kAtOnce * kLanes)
    multiply_values<R, kAtOnce>(scores, keep, values + column, next + column, count, wide, o + column);
  for (; column + 2 * kLanes <= wide; column += 2 * kLanes)
    multiply_values<R, 2>(scores, keep, values + column, next + column, count, wide, o + column);
  if (column < wide) multiply_values<R, 1>(scores, keep, values + column, next + column, count, wide, o + column);
}

// The token of its request and the head of q that a row of an item has.
struct Place {
  int64_t token, head;
};

INLINE Place place(const Item &item, int64_t row) {
  const int64_t each = rows_of_one(item), kv = row / each, rest = row % each;
  return {item.token + rest / item.heads, item.head + kv * item.heads + rest % item.heads};
}

// Where a row of an item has its result.
INLINE float *output(const Shape &s, const Buffers &b, const Item &item, int64_t row) {
  const Place at = place(item, row);
  return b.out + (b.batch->first[item.request] + at.token) * s.out_row + at.head * (s.partial ? kSent + s.dim : s.dim);
}

// Attends to a block of one K/V head with the rows [row, end) of an item.
template <typename Cell>
INLINE void attend_rows(const Shape &s, State &state, int64_t row, int64_t end, int64_t first, int64_t count,
                        const Cells<Cell> &cells, const float *scales) {
  for (; row + kTile <= end; row += kTile) attend_tile<kTile>(s, state, row, first, count, cells, scales);
  if (kTile > 4 && row + 4 <= end) {
    attend_tile<4>(s, state, row, first, count, cells, scales);
    row += 4;
  }
  if (row + 2 <= end) {
    attend_tile<2>(s, state, row, first, count, cells, scales);
    row += 2;
  }
  if (row < end) attend_tile<1>(s, state, row, first, count, cells, scales);
}

#if COLLAGE_AMX

// Makes weights of a row's scores of some blocks, of which it sees the first `seen` keys. Returns the factor of what was
// summed before.
INLINE float soften_span(float *scores, uint16_t *weights, const int64_t *seen, int64_t blocks, float &m, float &s) {
  const Vector hidden = filled(-INFINITY);
  Vector highest = hidden, total = {}, x;
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

// Attends to all blocks of one of an item's K/V heads with tiles; its rows begin with `row`.
INLINE void attend_tiled(const Shape &s, const Buffers &b, const Item &item, State &state, TileState &tiles, int64_t kv,
                         int64_t last) {
  const Batch &batch = *b.batch;
  const int64_t wide = padded(s.dim), rows = rows_of_one(item), row = kv * rows;
  const int32_t *const table = batch.tables + batch.table[item.request];
  float *const o = state.o + row * kMostDim;
  configure_tiles(tiles, rows > kTileRows ? (rows + 1) / 2 : rows);
  for (int64_t block = item.block; block < item.block_end; block += kSpan) {
    const int64_t blocks = std::min(kSpan, item.block_end - block);
    int64_t first[kSpan];
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t at = table[block + i] * s.kv_heads + item.head / (s.heads / s.kv_heads) + kv;
      first[i] = first_of(batch, item.request, block + i);
      order_keys(tiles, static_cast<const uint16_t *>(b.keys) + at * s.dim * kBlock, s.dim);
      tile_scores(tiles, tiles.q + row * kMostDim, rows, s.dim, tiles.scores + i * kBlock);
      order_values(static_cast<const uint16_t *>(b.values) + at * kBlock * wide, last + 1 - first[i], wide,
                   tiles.values + i * kTilePairs * wide);
    }
    for (int64_t r = 0; r < rows; ++r) {
      int64_t seen[kSpan];
      for (int64_t i = 0; i < blocks; ++i) seen[i] = std::min(state.position[row + r] + 1 - first[i], kBlock);
      const float keep = soften_span(tiles.scores + r * kSpanned, tiles.weights + r * kSpanned, seen, blocks,
                                     state.m[row + r], state.s[row + r]);
      if (keep == 1.0f) continue;
      for (int64_t column = 0; column < wide; column += kLanes) {
        Vector x;
        load(x, o + r * kMostDim + column);
        store(o + r * kMostDim + column, x * keep);
      }
    }
    tile_values(tiles, rows, blocks, wide, o);
  }
}

#endif

template <bool TILED, typename Cell>
INLINE void attend(const Shape &s, const Buffers &b, const Item &item, State &state,
                   [[maybe_unused]] TileState &tiles) {
  const Batch &batch = *b.batch;
  const int64_t half = s.rotary / 2, wide = padded(s.dim), each = rows_of_one(item), rows = each * item.kv_heads;
  const int64_t start = batch.start[item.request], from = item.head / (s.heads / s.kv_heads);
  for (int64_t row = 0; row < rows; ++row) {
    const Place at = place(item, row);
    const int64_t position = start + at.token;
    const float *const q = b.q + (batch.first[item.request] + at.token) * s.q_row + at.head * s.dim;
    rotate(s, q, b.cos + position * half, b.sin + position * half, state.q + row * kMostDim, 1, s.scale);
    memset(state.o + row * kMostDim, 0, wide * sizeof(float));
    state.m[row] = -INFINITY;
    state.s[row] = 0.0f;
    state.position[row] = position;
  }
  const int64_t last = start + item.token + item.tokens - 1;
  const bool tiled = TILED && std::is_same_v<Cell, uint16_t> && each >= kLeastTiled;
#if COLLAGE_AMX
  if (tiled) {
    round_rows(state.q, rows, s.dim, tiles);
    for (int64_t kv = 0; kv < item.kv_heads; ++kv) attend_tiled(s, b, item, state, tiles, kv, last);
  }
#endif
  const int32_t *const table = batch.tables + batch.table[item.request];
  for (int64_t block = tiled ? item.block_end : item.block; block < item.block_end; ++block) {
    const int64_t first = first_of(batch, item.request, block), count = std::min(kBlock, last + 1 - first);
    for (int64_t kv = 0; kv < item.kv_heads; ++kv) {
      const int64_t at = table[block] * s.kv_heads + from + kv;
      const bool more = kv + 1 < item.kv_heads, another = block + 1 < item.block_end;
      const int64_t next = more ? at + 1 : another ? table[block + 1] * s.kv_heads + from : at;
      const Cell *const keys = static_cast<const Cell *>(b.keys), *const values = static_cast<const Cell *>(b.values);
      const int64_t key_cells = s.dim * kBlock, value_cells = kBlock * wide;
      const Cells<Cell> cells{keys + at * key_cells, values + at * value_cells, keys + next * key_cells,
                              values + next * value_cells};
      const float *const scales = kScaled<Cell> ? b.scales + at * 2 * kBlock : nullptr;
      attend_rows(s, state, kv * each, (kv + 1) * each, first, count, cells, scales);
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const float *const o = state.o + row * kMostDim;
    if (item.partial >= 0) {
      float *const to = batch.partials + item.partial + row * (kHead + wide);
      to[0] = state.m[row];
      to[1] = state.s[row];
      memcpy(to + kHead, o, wide * sizeof(float));
      continue;
    }
    float *const to = output(s, b, item, row);
    if (s.partial) {
      to[0] = state.m[row];
      to[1] = state.s[row];
      memcpy(to + kSent, o, s.dim * sizeof(float));
      continue;
    }
    const float factor = 1.0f / state.s[row];
    for (int64_t d = 0; d < s.dim; ++d) to[d] = o[d] * factor;
  }
}

template <bool TILED, typename Cell>
INLINE void attend_items(const Shape &s, const Buffers &b) {
  Batch &batch = *b.batch;
  State state;
  TileState tiles;
  tiles.height = 0;
  while (true) {
    const int64_t item = __atomic_fetch_add(&batch.next, 1, __ATOMIC_RELAXED);
    if (item >= batch.item_count) break;
    attend<TILED, Cell>(s, b, batch.items[item], state, tiles);
  }
#if COLLAGE_AMX
  if (TILED) release_tiles(tiles);
#endif
}

// Merges `count` partial rows, `apart` floats from each other, whose o is `head` floats behind their m. The result is
// divided by s, or where `partial` it is one to be merged again.
INLINE void merge_row(const float *rows, int64_t count, int64_t apart, int64_t head, int64_t dim, bool partial,
                      float *to) {
  float most = -INFINITY, total = 0.0f;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, rows[i * apart]);
  float o[kMostDim] = {};
  for (int64_t i = 0; i < count; ++i) {
    const float *const each = rows + i * apart;
    if (each[0] == -INFINITY) continue;
    const float weight = expf(each[0] - most);
    total += each[1] * weight;
    for (int64_t d = 0; d < dim; ++d) o[d] += each[head + d] * weight;
  }
  if (partial) {
    to[0] = most;
    to[1] = total;
    memcpy(to + kSent, o, dim * sizeof(float));
    return;
  }
  for (int64_t d = 0; d < dim; ++d) to[d] = o[d] / total;
}

INLINE void merge(const Shape &s, const Buffers &b, int64_t part) {
  const Batch &batch = *b.batch;
  const int64_t wide = kHead + padded(s.dim);
  for (int64_t i = part; i < batch.merge_count; i += s.threads) {
    const Item &item = batch.items[batch.merges[i].item];
    const int64_t rows = rows_of_one(item) * item.kv_heads;
    for (int64_t row = 0; row < rows; ++row) {
      merge_row(batch.partials + item.partial + row * wide, batch.merges[i].splits, rows * wide, kHead, s.dim,
                s.partial, output(s, b, item, row));
    }
  }
}

enum class Phase { kStore, kAttend, kMerge };

template <bool TILED, typename Cell>
INLINE void run_with(Phase phase, const Shape &s, const Buffers &b, int64_t part) {
  switch (phase) {
    case Phase::kStore: store_tokens<Cell>(s, b, part); break;
    case Phase::kAttend: attend_items<TILED, Cell>(s, b); break;
    case Phase::kMerge: merge(s, b, part); break;
  }
}

template <bool TILED = false>
INLINE void run(Phase phase, const Shape &s, const Buffers &b, int64_t part) {
  switch (s.cells) {
    case COLLAGE_CELLS_INT8: run_with<TILED, int8_t>(phase, s, b, part); break;
    case COLLAGE_CELLS_BFLOAT16: run_with<TILED, uint16_t>(phase, s, b, part); break;
    default: run_with<TILED, float>(phase, s, b, part);
  }
}

using Run = void (*)(Phase, const Shape &, const Buffers &, int64_t);

#if COLLAGE_X86 && !defined(COLLAGE_AVX2)

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512"))) void run_512(
    Phase phase, const Shape &s, const Buffers &b, int64_t part) {
  run(phase, s, b, part);
}

#if COLLAGE_AMX

// With tiles where a cache is in bfloat16.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512"))) void run_tiled(
    Phase phase, const Shape &s, const Buffers &b, int64_t part) {
  run<true>(phase, s, b, part);
}

#endif

Run widest() {
#if COLLAGE_AMX
  if (collage_kernels_amx()) return run_tiled;
#endif
  return collage_kernels_isa() == 512 ? run_512 : nullptr;
}

#else

void run_here(Phase phase, const Shape &s, const Buffers &b, int64_t part) { run(phase, s, b, part); }

Run widest() { return run_here; }

#endif

int run_phase(Phase phase, void *a, void *b, intptr_t n) {
  static const Run best = widest();
  if (best == nullptr) return COLLAGE_UNAVAILABLE;
  best(phase, *static_cast<const Shape *>(a), *static_cast<const Buffers *>(b), n);
  return 0;
}

}  // namespace

extern "C" {

int collage_attention_store(void *a, void *b, intptr_t n, void *) {
  if (n == 0) static_cast<const Buffers *>(b)->batch->next = 0;  // attend begins when all have stored
  return run_phase(Phase::kStore, a, b, n);
}

int collage_attention_attend(void *a, void *b, intptr_t n, void *) { return run_phase(Phase::kAttend, a, b, n); }

int collage_attention_finish(void *a, void *b, intptr_t n, void *) { return run_phase(Phase::kMerge, a, b, n); }

int collage_attention_combine(void *a, void *b, intptr_t n, void *) {
  const Shape &s = *static_cast<const Shape *>(a);
  const Partials &p = *static_cast<const Partials *>(b);
  for (int64_t row = p.rows * n / s.threads; row < p.rows * (n + 1) / s.threads; ++row)
    for (int64_t head = 0; head < s.heads; ++head)
      merge_row(p.partials + (row * s.heads + head) * (kSent + s.dim), p.count, p.apart, kSent, s.dim, false,
                p.out + row * s.out_row + head * s.dim);
  return 0;
}

}  // extern "C"
