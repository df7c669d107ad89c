// Products with a large constant matrix of 8 bits, which is a quarter of the bytes of float32.
//
// The order of the work is that of bf16_gemm.cpp: each share goes through its panels of 48 columns once, and all rows of
// a chunk are multiplied with a panel while it is in the L2 cache. There are two kinds of arithmetic.
//
// Dot products add four products of 8 bits to a sum of 32 bits in one instruction. Each row of the data is rounded to
// 8 bits first, to steps from its own least to its own largest number, zero being one of them. A row's range is found
// in the pass that rounds it, so that no number is ever beyond it. Sums of integers are exact, and the epilogue
// multiplies them by the factors of row and column. A row with NaN or infinity has NaN in all of its results.
//
// Widened weights are multiplied with float32 rows, so that only the weights are rounded: for a few rows, where memory
// sets the pace, this is as fast.

#include "int8_gemm.h"

#include "kernels.h"

#if COLLAGE_X86

#include <float.h>
#include <math.h>
#include <string.h>

#include <algorithm>

#include "epilogue.h"
#include "widened.h"

namespace {

using namespace collage;

constexpr int64_t kFour = 4;  // of k, which lie together

using Shape = collage_int8_gemm_shape;
using Buffers = collage_int8_gemm_buffers;

// What the rows of a chunk were rounded to: numbers are scale * (byte - zero).
struct Steps {
  float *scale;
  int32_t *zero;
};

#ifndef COLLAGE_AVX2
#define COLLAGE_VNNI __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma,avx512vnni")))

constexpr int kOdd = 0x99;  // classes of numbers: NaN of both kinds, and both infinities

template <int MR, int NR>
COLLAGE_VNNI void dots(const Streamed &o, void *c) {
  __m512i sum[MR][NR];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) sum[i][j] = _mm512_setzero_si512();
  const uint8_t *a = static_cast<const uint8_t *>(o.a);
  const float *b = o.b, *ahead = o.ahead;
  for (intptr_t first = 0; first < o.lines; first += o.kStep) {
    prefetch(ahead, o.ahead_lines);
    const intptr_t last = std::min(first + o.kStep, o.lines);
#pragma GCC unroll 2
    for (intptr_t four = first; four < last; ++four, a += kFour, b += NR * kLanes) {
      __m512i right[NR];
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) right[j] = _mm512_load_si512(b + j * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        int32_t some;
        memcpy(&some, a + i * o.a_row, sizeof some);
        const __m512i left = _mm512_set1_epi32(some);
#pragma GCC unroll 4
        for (int j = 0; j < NR; ++j) sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], left, right[j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j)
      _mm512_store_si512(static_cast<int32_t *>(c) + i * kWide + j * kLanes, sum[i][j]);
}

template <int NR>
constexpr auto kDots = by_rows<StreamedTile, kTileRows>([](auto rows) { return dots<rows, NR>; });

StreamedTiles tiles_of(bool widens, int wide) {
  if (widens) return widened_tiles<Int8Weights>(wide);
  return wide == 3 ? kDots<3> : wide == 2 ? kDots<2> : kDots<1>;
}

// The least and the largest number of a row, zero being one of them; false where it has NaN or infinity.
bool range_of(const Shape &s, const void *src, int64_t row, float *low, float *high) {
  __m512 least = _mm512_setzero_ps(), most = _mm512_setzero_ps();
  __mmask16 odd = 0;
  for (intptr_t k = 0; k < s.depth; k += kLanes) {
    const __m512 x = load(src, s.src_narrow, row * s.depth + k, first_lanes(s.depth - k));
    least = _mm512_maskz_min_ps(0xffff, least, x);
    most = _mm512_maskz_max_ps(0xffff, most, x);
    odd |= _mm512_fpclass_ps_mask(x, kOdd);
  }
  float lows[kLanes], highs[kLanes];
  _mm512_storeu_ps(lows, least);
  _mm512_storeu_ps(highs, most);
  *low = *std::min_element(lows, lows + kLanes);
  *high = *std::max_element(highs, highs + kLanes);
  return odd == 0;
}

// Rounds a row to `length` bytes, a multiple of 4, and tells its scale and zero point.
void round_row(const Shape &s, const void *src, int64_t row, uint8_t *to, intptr_t length, float *scale,
               int32_t *zero) {
  float low, high;
  if (!range_of(s, src, row, &low, &high)) {
    memset(to, 0, length);
    *scale = NAN;
    *zero = 0;
    return;
  }
  *scale = std::max(high / 255 - low / 255, FLT_MIN);
  const float inverse = 1 / *scale;
  *zero = std::min<int32_t>(int32_t(lrintf(-low * inverse)), 255);
  const __m512i shift = _mm512_set1_epi32(*zero), none = _mm512_setzero_si512();
  for (intptr_t k = 0; k < length; k += kLanes) {
    const __m512 x = load(src, s.src_narrow, row * s.depth + k, first_lanes(s.depth - k));
    const __m512i steps = _mm512_maskz_cvtps_epi32(0xffff, x * _mm512_set1_ps(inverse));
    const __m512i moved = _mm512_maskz_max_epi32(0xffff, none, _mm512_add_epi32(steps, shift));
    _mm_mask_storeu_epi8(to + k, first_lanes(length - k), _mm512_maskz_cvtusepi32_epi8(0xffff, moved));
  }
}

// The results of one row from sums of integers. The sum times the row's scale alone may be too large.
Floats exact(const Steps &steps, int64_t row, const void *sums, const int32_t *of_weights, Mask mask, Floats scales) {
  const __m512i shift = _mm512_set1_epi32(steps.zero[row]);
  const __m512i beside = _mm512_mullo_epi32(shift, _mm512_maskz_loadu_epi32(mask, of_weights));
  const __m512i found = _mm512_sub_epi32(_mm512_load_si512(sums), beside);
  return _mm512_maskz_cvtepi32_ps(0xffff, found) * (_mm512_set1_ps(steps.scale[row]) * scales);
}

#else

// There are no dot products of 8 bits.
StreamedTiles tiles_of(bool, int wide) { return widened_tiles<Int8Weights>(wide); }
void round_row(const Shape &, const void *, int64_t, uint8_t *, intptr_t, float *, int32_t *) {}
Floats exact(const Steps &, int64_t, const void *, const int32_t *, Mask, Floats) { return zeros(); }

#endif

// The results of some rows (counted from `first`, where the chunk begins) and of `columns` columns from `column` on.
template <Activation ACTIVATION>
void finish(const Shape &s, const Buffers &b, const Steps &steps, int64_t first, Range rows, int64_t column,
            int64_t columns) {
  const Floats low = broadcast(s.low), high = broadcast(s.high), zero = zeros();
  for (int64_t j = 0; j < columns; j += kLanes) {
    const Mask mask = first_lanes(columns - j);
    const Floats scales = load(mask, b.scales + column + j);
    const Floats bias = b.bias == nullptr ? zero : load(mask, b.bias + column + j);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const intptr_t at = row * s.columns + column + j;
      const char *const sums = static_cast<const char *>(b.scratch) + 4 * ((row - rows.begin) * kWide + j);
      Floats x = s.widens ? load(reinterpret_cast<const float *>(sums)) * scales
                          : exact(steps, row - first, sums, b.sums + column + j, mask, scales);
      x += bias;
      const Floats residual = b.residual == nullptr ? zero : load(b.residual, s.dst_narrow, at, mask);
      if (s.residual_first) x += residual;
      x = clamp(activate(x, ACTIVATION), low, high);
      if (!s.residual_first) x += residual;
      store(b.dst, s.dst_narrow, at, mask, x);
    }
  }
}

using Finish = void (*)(const Shape &, const Buffers &, const Steps &, int64_t, Range, int64_t, int64_t);

constexpr Finish kEndings[] = {finish<kNone>,    finish<kGelu>,  finish<kTanh>,
                               finish<kSigmoid>, finish<kSwish>, finish<kGeluTanh>};
constexpr int64_t kEndingCount = sizeof kEndings / sizeof *kEndings;

// One share's work: rows against blocks of columns.
class Worker {
 public:
  Worker(const Shape &s, const Buffers &b, Range blocks) : s_(s), b_(b), blocks_(blocks) {
    steps_.scale = static_cast<float *>(b.scratch) + kTileRows * kWide;
    steps_.zero = reinterpret_cast<int32_t *>(steps_.scale + s.row_chunk);
  }

  // Streams the share's weights once.
  void chunk(Range rows) const {
    Streamed o{};
    o.lines = (s_.depth + kFour - 1) / kFour;
    const size_t item = s_.widens ? sizeof(float) : 1;
    if (s_.widens && !s_.src_narrow && s_.depth % kFour == 0) {
      o.a = static_cast<const float *>(b_.src) + rows.begin * s_.depth;
      o.a_row = s_.depth;
    } else {
      o.a_row = kFour * o.lines;
      o.a = copied(rows, o.a_row);
    }
    each_panel(
        o, item, rows, Int8Weights::kMostRows, blocks_, reinterpret_cast<const float *>(b_.weights), b_.scratch,
        s_.in_order != 0,
        [&](int wide) -> StreamedTiles { return tiles_of(s_.widens, wide); },
        [&](Range some, int64_t column, int64_t columns) {
          columns = std::min(columns, s_.columns - column);
          kEndings[s_.activation](s_, b_, steps_, rows.begin, some, column, columns);
        });
  }

 private:
  // The rows as tiles read them, `length` elements each, of which those beyond the depth meet weights of zero.
  const void *copied(Range rows, intptr_t length) const {
    float *const to = steps_.scale + 2 * s_.row_chunk;
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const int64_t place = i - rows.begin;
      if (!s_.widens) {
        round_row(s_, b_.src, i, reinterpret_cast<uint8_t *>(to) + place * length, length, steps_.scale + place,
                  steps_.zero + place);
        continue;
      }
      for (intptr_t k = 0; k < length; k += kLanes) {
        const Floats x = load(b_.src, s_.src_narrow, i * s_.depth + k, first_lanes(s_.depth - k));
        store(to + place * length + k, first_lanes(length - k), x);
      }
    }
    return to;
  }

  const Shape &s_;
  const Buffers &b_;
  const Range blocks_;
  Steps steps_;
};

}  // namespace

extern "C" int collage_kernels_int8(void) {
  return collage::cpu().vnni;
}

extern "C" int collage_int8_gemm(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  if (shape.activation < 0 || shape.activation >= kEndingCount) return COLLAGE_UNAVAILABLE;
  if (!collage::is_built(shape) || (!shape.widens && !collage_kernels_int8())) return COLLAGE_UNAVAILABLE;
  collage::run_share<Worker>(shape, *static_cast<const Buffers *>(b), n);
  return 0;
}

#include "target_end.h"

#else

extern "C" int collage_kernels_int8(void) { return 0; }

extern "C" int collage_int8_gemm(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
