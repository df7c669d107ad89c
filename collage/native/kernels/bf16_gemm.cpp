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

#include "avx512.h"
#include "bf16_panels.h"

#define COLLAGE_DOTS __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma,avx512bf16")))

namespace {

using collage::Accumulators;
using collage::kLanes;
using collage::kPanel;
using collage::kWide;
using collage::part;
using collage::parts;
using collage::Range;

constexpr int kRows = 8;       // of a register tile
constexpr int64_t kStep = 16;  // pairs of k between prefetches

using Shape = collage_bf16_gemm_shape;
using Buffers = collage_bf16_gemm_buffers;

// A tile's factors: rows of `a` that are `a_row` elements apart, and `pairs` pairs of k of a panel.
struct Factors {
  const void *a;
  intptr_t a_row, pairs;
  const uint16_t *b;
  const uint16_t *ahead;
  intptr_t ahead_lines;
};

inline void prefetch(const uint16_t *&ahead, intptr_t lines) {
  for (intptr_t line = 0; line < lines; ++line, ahead += 2 * kLanes) _mm_prefetch(ahead, _MM_HINT_T1);
}

template <int MR, int NR>
inline __attribute__((always_inline)) void store(const Accumulators<MR, NR> &sum, float *c) {
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) _mm512_store_ps(c + i * kWide + j * kLanes, sum.at[i][j]);
}

template <int MR, int NR>
COLLAGE_DOTS void dots(const Factors &o, float *c) {
  Accumulators<MR, NR> sum;
  sum.clear();
  const uint16_t *a = static_cast<const uint16_t *>(o.a), *b = o.b, *ahead = o.ahead;
  for (intptr_t first = 0; first < o.pairs; first += kStep) {
    prefetch(ahead, o.ahead_lines);
    const intptr_t last = std::min<intptr_t>(first + kStep, o.pairs);
#pragma GCC unroll 2
    for (intptr_t pair = first; pair < last; ++pair, a += 2, b += NR * 2 * kLanes) {
      __m512i right[NR];
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) right[j] = _mm512_load_si512(b + j * 2 * kLanes);
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
  store(sum, c);
}

template <int MR, int NR>
void widened(const Factors &o, float *c) {
  Accumulators<MR, NR> sum;
  sum.clear();
  const float *a = static_cast<const float *>(o.a);
  const uint16_t *b = o.b, *ahead = o.ahead;
  const __m512i odd = _mm512_set1_epi32(int(0xffff0000u));
  for (intptr_t first = 0; first < o.pairs; first += kStep) {
    prefetch(ahead, o.ahead_lines);
    const intptr_t last = std::min<intptr_t>(first + kStep, o.pairs);
    for (intptr_t pair = first; pair < last; ++pair, a += 2, b += NR * 2 * kLanes) {
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) {
        const __m512i both = _mm512_load_si512(b + j * 2 * kLanes);
        const __m512 even_k = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, both, 16));
        const __m512 odd_k = _mm512_castsi512_ps(_mm512_and_si512(both, odd));
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
          sum.at[i][j] = _mm512_fmadd_ps(_mm512_set1_ps(a[i * o.a_row]), even_k, sum.at[i][j]);
          sum.at[i][j] = _mm512_fmadd_ps(_mm512_set1_ps(a[i * o.a_row + 1]), odd_k, sum.at[i][j]);
        }
      }
    }
  }
  store(sum, c);
}

using Tile = void (*)(const Factors &, float *);

template <int NR>
constexpr Tile kDots[kRows + 1] = {nullptr,    dots<1, NR>, dots<2, NR>, dots<3, NR>, dots<4, NR>,
                                   dots<5, NR>, dots<6, NR>, dots<7, NR>, dots<8, NR>};
template <int NR>
constexpr Tile kWidened[kRows + 1] = {nullptr,       widened<1, NR>, widened<2, NR>, widened<3, NR>, widened<4, NR>,
                                      widened<5, NR>, widened<6, NR>, widened<7, NR>, widened<8, NR>};

const Tile *tiles_of(bool widens, int wide) {
  if (widens) return wide == 3 ? kWidened<3> : wide == 2 ? kWidened<2> : kWidened<1>;
  return wide == 3 ? kDots<3> : wide == 2 ? kDots<2> : kDots<1>;
}

// One share's work: rows against blocks of columns.
class Worker {
 public:
  Worker(const Shape &s, const Buffers &b, Range blocks) : s_(s), b_(b), blocks_(blocks) {}

  // Streams the share's weights once.
  void chunk(Range rows) const {
    const intptr_t pairs = (s_.depth + 1) / 2;
    Factors o{};
    o.pairs = pairs;
    const size_t item = s_.widens ? sizeof(float) : sizeof(uint16_t);
    const bool as_it_is = (s_.src_narrow == 0) == (s_.widens != 0);
    if (as_it_is && s_.depth % 2 == 0) {
      o.a = static_cast<const char *>(b_.src) + rows.begin * s_.depth * item;
      o.a_row = s_.depth;
    } else {
      o.a = collage::copied_rows(s_, b_, rows, 2 * pairs, b_.scratch + kRows * kWide);
      o.a_row = 2 * pairs;
    }
    const char *const first = static_cast<const char *>(o.a);
    const uint16_t *weights = b_.weights + blocks_.begin * kLanes * 2 * pairs;
    const uint16_t *const end = b_.weights + blocks_.end * kLanes * 2 * pairs;
    const int64_t groups = parts(rows, kRows);
    for (int64_t block = blocks_.begin; block < blocks_.end; block += kPanel) {
      const int wide = int(std::min<int64_t>(kPanel, blocks_.end - block));
      const Tile *const tiles = tiles_of(s_.widens, wide);
      const intptr_t lines = pairs * wide, column = block * kLanes;
      const uint16_t *const next = weights + lines * 2 * kLanes;
      const bool more = next < end;
      o.b = weights;
      o.ahead_lines = more ? (wide * kStep + groups - 1) / groups : 0;
      for (int64_t group = 0; group < groups; ++group) {
        const Range some = part(rows, group, groups);
        if (more) o.ahead = next + lines * group / groups * 2 * kLanes;
        o.a = first + (some.begin - rows.begin) * o.a_row * item;
        tiles[some.end - some.begin](o, b_.scratch);
        collage::finish_panel(s_, b_, some, column, std::min<int64_t>(wide * kLanes, s_.columns - column));
      }
      weights = next;
    }
  }

 private:
  const Shape &s_;
  const Buffers &b_;
  const Range blocks_;
};

}  // namespace

extern "C" int collage_kernels_bf16(void) {
  __builtin_cpu_init();
  return collage_kernels_isa() >= 512 && __builtin_cpu_supports("avx512bf16") ? 1 : 0;
}

extern "C" int collage_bf16_gemm(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  if (shape.activation < 0 || shape.activation >= collage::kEndingCount) return COLLAGE_UNAVAILABLE;
  if (!shape.widens && !collage_kernels_bf16()) return COLLAGE_UNAVAILABLE;
  collage::run_share<Worker>(shape, *static_cast<const Buffers *>(b), n);
  return 0;
}

#else

extern "C" int collage_kernels_bf16(void) { return 0; }

extern "C" int collage_bf16_gemm(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
