// Products with a large constant matrix of bfloat16, which is half as many bytes to read as float32.
//
// Each share goes through its panels of 48 columns once, in the order in which they lie. All rows of a chunk are
// multiplied with a panel while it is in the L2 cache, and prefetch the next one meanwhile. The sums of a panel are
// float32, in scratch memory, until the epilogue writes them as float32 or bfloat16.
//
// There are two kinds of arithmetic. Dot products add two products of bfloat16 to a float32 sum in one instruction,
// which takes denormals for zero; float32 rows are rounded first. Widened weights are multiplied with float32 rows, so
// that only the weights are rounded: for a few rows, where memory sets the pace, this is as fast.

#include "bf16_gemm.h"

#include "kernels.h"

#if COLLAGE_X86

#include <string.h>

#include <algorithm>

#include "bf16_panels.h"
#include "widened.h"

namespace {

using namespace collage;

using Shape = collage_bf16_gemm_shape;
using Buffers = collage_bf16_gemm_buffers;

#ifndef COLLAGE_AVX2
#define COLLAGE_DOTS __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma,avx512bf16")))

template <int MR, int NR>
COLLAGE_DOTS void dots(const Streamed &o, void *c) {
  Accumulators<MR, NR> sum;
  sum.clear();
  const uint16_t *a = static_cast<const uint16_t *>(o.a);
  const float *b = o.b, *ahead = o.ahead;
  for (intptr_t first = 0; first < o.lines; first += o.kStep) {
    prefetch(ahead, o.ahead_lines);
    const intptr_t last = std::min(first + o.kStep, o.lines);
#pragma GCC unroll 2
    for (intptr_t pair = first; pair < last; ++pair, a += 2, b += NR * kLanes) {
      __m512i right[NR];
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) right[j] = _mm512_load_si512(b + j * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        int32_t two;
        memcpy(&two, a + i * o.a_row, sizeof two);
        const __m512i left = _mm512_set1_epi32(two);
#pragma GCC unroll 4
        for (int j = 0; j < NR; ++j)
          sum.at[i][j] = _mm512_dpbf16_ps(sum.at[i][j], (__m512bh)left, (__m512bh)right[j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) store(static_cast<float *>(c) + i * kWide + j * kLanes, sum.at[i][j]);
}

template <int NR>
constexpr auto kDots = by_rows<StreamedTile, kTileRows>([](auto rows) { return dots<rows, NR>; });

StreamedTiles tiles_of(bool widens, int wide) {
  if (widens) return widened_tiles<Bf16Weights>(wide);
  return wide == 3 ? kDots<3> : wide == 2 ? kDots<2> : kDots<1>;
}
#else
StreamedTiles tiles_of(bool, int wide) { return widened_tiles<Bf16Weights>(wide); }
#endif

// One share's work: rows against blocks of columns.
class Worker {
 public:
  Worker(const Shape &s, const Buffers &b, Range blocks) : s_(s), b_(b), blocks_(blocks) {}

  // Streams the share's weights once.
  void chunk(Range rows) const {
    Streamed o{};
    o.lines = (s_.depth + 1) / 2;
    const size_t item = s_.widens ? sizeof(float) : sizeof(uint16_t);
    const bool as_it_is = (s_.src_narrow == 0) == (s_.widens != 0);
    if (as_it_is && s_.depth % 2 == 0) {
      o.a = static_cast<const char *>(b_.src) + rows.begin * s_.depth * item;
      o.a_row = s_.depth;
    } else {
      o.a = copied_rows(s_, b_, rows, 2 * o.lines, b_.scratch + kTileRows * kWide);
      o.a_row = 2 * o.lines;
    }
    each_panel(
        o, item, rows, kTileRows, blocks_, reinterpret_cast<const float *>(b_.weights), b_.scratch,
        s_.in_order != 0,
        [&](int wide) -> StreamedTiles { return tiles_of(s_.widens, wide); },
        [&](Range some, int64_t column, int64_t columns) {
          finish_panel(s_, b_, some, column, std::min(columns, s_.columns - column));
        });
  }

 private:
  const Shape &s_;
  const Buffers &b_;
  const Range blocks_;
};

}  // namespace

extern "C" int collage_kernels_bf16(void) {
  return collage::cpu().bf16;
}

extern "C" int collage_bf16_gemm(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  if (shape.activation < 0 || shape.activation >= collage::kEndingCount) return COLLAGE_UNAVAILABLE;
  if (!collage::is_built(shape) || (!shape.widens && !collage_kernels_bf16())) return COLLAGE_UNAVAILABLE;
  collage::run_share<Worker>(shape, *static_cast<const Buffers *>(b), n);
  return 0;
}

#include "target_end.h"

#else

extern "C" int collage_kernels_bf16(void) { return 0; }

extern "C" int collage_bf16_gemm(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
