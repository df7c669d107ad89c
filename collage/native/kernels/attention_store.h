// Rotation by positions, and writing keys and values to the cache. To be included by attention.cpp alone.

#ifndef COLLAGE_NATIVE_KERNELS_ATTENTION_STORE_H
#define COLLAGE_NATIVE_KERNELS_ATTENTION_STORE_H

#include "attention_cells.h"
#include "attention_items.h"

namespace {

using namespace collage_attention;
using Buffers = collage_attention_buffers;

// to = from, rotated by a position's angles.
template <typename Cell>
INLINE void rotate(const Shape &s, const float *from, const float *cos, const float *sin, Cell *to, int64_t step,
                   float factor) {
  const int64_t half = s.rotary / 2;
  const int64_t apart = s.interleaved ? 1 : half, each = s.interleaved ? 2 : 1;
  for (int64_t i = 0; i < half; ++i) {
    const float x = from[i * each], y = from[i * each + apart];
    put(to[i * each * step], (x * cos[i] - y * sin[i]) * factor);
    put(to[(i * each + apart) * step], (y * cos[i] + x * sin[i]) * factor);
  }
  for (int64_t i = s.rotary; i < s.dim; ++i) put(to[i * step], from[i] * factor);
}

// One head after the other, so that the lines of a block to which its tokens are written stay in the first cache.
template <typename Cell>
INLINE void store_tokens(const Shape &s, const Buffers &b, int64_t part) {
  const Batch &batch = *b.batch;
  const int64_t tokens = batch.first[batch.requests], half = s.rotary / 2, wide = value_width(s);
  const int64_t end = tokens * (part + 1) / s.threads;
  Cell *const keys = static_cast<Cell *>(b.keys), *const values = static_cast<Cell *>(b.values);
  for (int64_t head = 0; head < s.kv_heads; ++head) {
    int64_t request = 0;
    for (int64_t row = tokens * part / s.threads; row < end; ++row) {
      while (batch.first[request + 1] <= row) ++request;
      const int64_t position = batch.start[request] + row - batch.first[request];
      const int64_t slot = position % kBlock;
      const int64_t block = batch.stored ? batch.stored[row] : batch.tables[batch.table[request] + position / kBlock];
      if (block < 0) continue;
      const float *const cos = b.cos + position * half, *const sin = b.sin + position * half;
      const int64_t at = block * s.kv_heads + head;
      const float *const v = b.v + row * s.v_row + head * s.value_dim;
      Cell *const to = values + (at * kBlock + slot) * wide;
      if constexpr (kScaled<Cell>) {
        float k[kMostDim], *const scales = b.scales + at * 2 * kBlock + slot;
        rotate(s, b.k + row * s.k_row + head * s.dim, cos, sin, k, 1, 1.0f);
        scales[0] = quantize(k, s.dim, keys + at * s.dim * kBlock + slot, kBlock);
        scales[kBlock] = quantize(v, s.value_dim, to, 1);
      } else {
        rotate(s, b.k + row * s.k_row + head * s.dim, cos, sin, keys + at * s.dim * kBlock + slot, kBlock, 1.0f);
        for (int64_t d = 0; d < s.value_dim; ++d) put(to[d], v[d]);
      }
    }
  }
}

}  // namespace
#endif
