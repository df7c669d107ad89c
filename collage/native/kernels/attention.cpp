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
#include "attention_rows.h"
#include "attention_store.h"
#include "attention_tiles.h"
#include "kernels.h"

namespace {

using Partials = collage_attention_partials;

constexpr int64_t kSent = 2;  // floats before an o that another process gets: m and s

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
  const int64_t wide = s.partial ? kSent + s.value_dim : s.value_dim;
  return b.out + (b.batch->first[item.request] + at.token) * s.out_row + at.head * wide;
}

#if COLLAGE_AMX

// Attends to all blocks of one of an item's K/V heads with tiles; its rows begin with `row`.
INLINE void attend_tiled(const Shape &s, const Buffers &b, const Item &item, State &state, TileState &tiles, int64_t kv,
                         int64_t last) {
  const Batch &batch = *b.batch;
  const int64_t wide = value_width(s), rows = rows_of_one(item), row = kv * rows;
  const int32_t *const table = batch.tables + batch.table[item.request];
  float *const o = state.o + row * wide;
  configure_tiles(tiles, rows > kTileRows ? (rows + 1) / 2 : rows);
  for (int64_t block = first_seen(s, batch, item); block < item.block_end; block += kSpan) {
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
      if (adjusts(s, b))
        adjust(s, tiles.scores + r * kSpanned, first, blocks, state.position[row + r], state.slope[row + r]);
      multiply_row(o + r * wide, wide,
                   soften(tiles.scores + r * kSpanned, tiles.weights + r * kSpanned, seen, blocks, state.m[row + r],
                          state.s[row + r]));
    }
    tile_values(tiles, rows, blocks, wide, o);
  }
}

#endif

// What a row's o is divided by: its sum, and the weight of its head's sink. A sink that is so much larger than the scores
// that its weight is infinite leaves zeros.
INLINE float divisor(const float *sinks, int64_t head, float most, float sum) {
  return sinks ? sum + expf(sinks[head] - most) : sum;
}

template <bool TILED, typename Cell>
INLINE void attend(const Shape &s, const Buffers &b, const Item &item, State &state,
                   [[maybe_unused]] TileState &tiles) {
  const Batch &batch = *b.batch;
  const int64_t half = s.rotary / 2, each = rows_of_one(item), rows = each * item.kv_heads;
  const int64_t wide = padded(s.dim), value_wide = value_width(s);
  const int64_t start = batch.start[item.request], from = item.head / (s.heads / s.kv_heads);
  for (int64_t row = 0; row < rows; ++row) {
    const Place at = place(item, row);
    const int64_t position = start + at.token;
    const float *const q = b.q + (batch.first[item.request] + at.token) * s.q_row + at.head * s.dim;
    rotate(s, q, b.cos + position * half, b.sin + position * half, state.q + row * wide, 1, s.scale);
    memset(state.o + row * value_wide, 0, value_wide * sizeof(float));
    state.m[row] = -INFINITY;
    state.s[row] = 0.0f;
    state.slope[row] = b.slopes ? b.slopes[at.head] : 0.0f;
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
  for (int64_t block = tiled ? item.block_end : first_seen(s, batch, item); block < item.block_end; block += kSpan) {
    Span span{std::min(kSpan, item.block_end - block), {}, {}};
    for (int64_t i = 0; i < span.blocks; ++i) {
      span.first[i] = first_of(batch, item.request, block + i);
      span.place[i] = table[block + i] * s.kv_heads + from;
    }
    const int64_t end = block + span.blocks;
    attend_span<Cell>(s, b, item, state, span, last, end < item.block_end ? table[end] * s.kv_heads + from : span.place[0]);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const float *const o = state.o + row * value_wide;
    if (item.partial >= 0) {
      float *const to = batch.partials + item.partial + row * (kHead + value_wide);
      to[0] = state.m[row];
      to[1] = state.s[row];
      memcpy(to + kHead, o, value_wide * sizeof(float));
      continue;
    }
    float *const to = output(s, b, item, row);
    if (s.partial) {
      to[0] = state.m[row];
      to[1] = state.s[row];
      memcpy(to + kSent, o, s.value_dim * sizeof(float));
      continue;
    }
    const float factor = 1.0f / divisor(b.sinks, place(item, row).head, state.m[row], state.s[row]);
    for (int64_t d = 0; d < s.value_dim; ++d) to[d] = o[d] * factor;
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

// Merges `count` partial rows, `apart` floats from each other, whose o is `before` floats behind their m. The result, that
// of the head of this number, is divided by s, or where `partial` it is one to be merged again.
INLINE void merge_row(const float *rows, int64_t count, int64_t apart, int64_t before, int64_t dim, bool partial,
                      const float *sinks, int64_t head, float *to) {
  float most = -INFINITY, total = 0.0f;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, rows[i * apart]);
  float o[kMostDim] = {};
  for (int64_t i = 0; i < count; ++i) {
    const float *const each = rows + i * apart;
    if (each[0] == -INFINITY) continue;
    const float weight = expf(each[0] - most);
    total += each[1] * weight;
    for (int64_t d = 0; d < dim; ++d) o[d] += each[before + d] * weight;
  }
  if (partial) {
    to[0] = most;
    to[1] = total;
    memcpy(to + kSent, o, dim * sizeof(float));
    return;
  }
  const float all = divisor(sinks, head, most, total);
  for (int64_t d = 0; d < dim; ++d) to[d] = o[d] / all;
}

INLINE void merge(const Shape &s, const Buffers &b, int64_t part) {
  const Batch &batch = *b.batch;
  const int64_t wide = kHead + value_width(s);
  for (int64_t i = part; i < batch.merge_count; i += s.threads) {
    const Item &item = batch.items[batch.merges[i].item];
    const int64_t rows = rows_of_one(item) * item.kv_heads;
    for (int64_t row = 0; row < rows; ++row) {
      merge_row(batch.partials + item.partial + row * wide, batch.merges[i].splits, rows * wide, kHead,
                s.value_dim, s.partial, b.sinks, place(item, row).head, output(s, b, item, row));
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

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma" COLLAGE_WIDE))) void run_512(
    Phase phase, const Shape &s, const Buffers &b, int64_t part) {
  run(phase, s, b, part);
}

#if COLLAGE_AMX

// With tiles where a cache is in bfloat16.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma" COLLAGE_WIDE))) void run_tiled(
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
      merge_row(p.partials + (row * s.heads + head) * (kSent + s.value_dim), p.count, p.apart, kSent, s.value_dim,
                false, p.sinks, head, p.out + row * s.out_row + head * s.value_dim);
  return 0;
}

}  // extern "C"

#if COLLAGE_X86 && defined(COLLAGE_AVX2)
#include "target_end.h"
#endif
