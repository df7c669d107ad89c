// What products have in common whose constant matrix is streamed through the caches in fewer bits than float32.
// To be included after avx512.h.

#ifndef COLLAGE_NATIVE_KERNELS_STREAMED_H
#define COLLAGE_NATIVE_KERNELS_STREAMED_H

#include <immintrin.h>
#include <stdint.h>

#include "bf16.h"
#include "tile.h"

namespace collage {

struct Range {
  int64_t begin, end;
};

inline Range part(Range whole, int64_t which, int64_t parts) {
  const int64_t size = whole.end - whole.begin;
  return {whole.begin + size * which / parts, whole.begin + size * (which + 1) / parts};
}

inline int64_t parts(Range whole, int64_t most) { return (whole.end - whole.begin + most - 1) / most; }

// Elements from `at` on of a matrix that is float32 or bfloat16.
inline __m512 load(const void *from, bool narrow, intptr_t at, __mmask16 mask) {
  return narrow ? load_bf16(mask, static_cast<const uint16_t *>(from) + at)
                : _mm512_maskz_loadu_ps(mask, static_cast<const float *>(from) + at);
}

inline void store(void *to, bool narrow, intptr_t at, __mmask16 mask, __m512 x) {
  if (narrow)
    store_bf16(static_cast<uint16_t *>(to) + at, mask, x);
  else
    _mm512_mask_storeu_ps(static_cast<float *>(to) + at, mask, x);
}

// A share's rows against its blocks of columns: `Worker`, made of the shape, the buffers and the blocks, takes the rows
// chunk by chunk, and streams the share's weights once for each.
template <typename Worker, typename Shape, typename Buffers>
void run_share(const Shape &s, const Buffers &b, int64_t share) {
  Range rows{0, s.rows}, blocks{0, (s.columns + kLanes - 1) / kLanes};
  (s.by_rows ? rows : blocks) = part(s.by_rows ? rows : blocks, share, s.shares);
  const Worker worker(s, b, blocks);
  const int64_t chunks = parts(rows, s.row_chunk);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) worker.chunk(part(rows, chunk, chunks));
}

}  // namespace collage
#endif
