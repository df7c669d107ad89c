// The innermost loop of matrix products: a tile of the result held in AVX-512 registers.
//
// C[row][column] = sum over k of A[row][k] * B[k][column]. The elements of A are broadcast. B is packed: for each k
// the 16 * NR columns of one panel, one k after the other.
//
// MR * NR accumulators and NR + 1 more registers must fit in 32: 14x2, 8x3, 6x4, 28x1. Any of these reaches 95% of
// what two fused multiply-adds a cycle are (Zen 5: 250-257 GFLOP/s of 266 at 4.15 GHz, from the L1 cache).

#ifndef COLLAGE_NATIVE_KERNELS_TILE_H
#define COLLAGE_NATIVE_KERNELS_TILE_H

#include <immintrin.h>
#include <stdint.h>

namespace collage {

constexpr intptr_t kLanes = 16;

template <int MR, int NR>
struct Accumulators {
  __m512 at[MR][NR];

  __attribute__((always_inline)) void clear() {
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) at[i][j] = _mm512_setzero_ps();
  }

  // One k: `a` is its column of A, with `row` floats from row to row, `b` its row of B.
  __attribute__((always_inline)) void add(const float *a, intptr_t row, const float *b) {
    __m512 right[NR];
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) right[j] = _mm512_load_ps(b + j * kLanes);
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i) {
      const __m512 left = _mm512_set1_ps(a[i * row]);
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) at[i][j] = _mm512_fmadd_ps(left, right[j], at[i][j]);
    }
  }
};

// A in blocks of 16 k: within a block its rows are 16 floats apart. Several such A, `a_tap` floats apart, are summed,
// with their panels of B one behind the other. With each block, `ahead_lines` cache lines from `ahead` on are
// prefetched.
struct Blocked {
  const float *a;
  intptr_t a_block, blocks;  // floats between blocks, and how many
  intptr_t a_tap, taps;
  const float *b;
  const float *ahead;
  intptr_t ahead_lines;
};

template <int MR, int NR>
__attribute__((always_inline)) inline void multiply(const Blocked &o, Accumulators<MR, NR> &result) {
  Accumulators<MR, NR> sum;
  sum.clear();
  const float *b = o.b, *ahead = o.ahead;
  for (intptr_t tap = 0; tap < o.taps; ++tap) {
    const float *a = o.a + tap * o.a_tap;
    for (intptr_t block = 0; block < o.blocks; ++block, a += o.a_block) {
      for (intptr_t line = 0; line < o.ahead_lines; ++line, ahead += kLanes) _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 4
      for (int k = 0; k < kLanes; ++k, b += NR * kLanes) sum.add(a + k, kLanes, b);
    }
  }
  result = sum;
}

// A with rows `a_row` floats apart. Every 16 k, `ahead_lines` cache lines from `ahead` on are prefetched.
struct Plain {
  const float *a;
  intptr_t a_row, depth;
  const float *b;
  const float *ahead;
  intptr_t ahead_lines;
};

template <int MR, int NR>
__attribute__((always_inline)) inline void multiply(const Plain &o, Accumulators<MR, NR> &result) {
  Accumulators<MR, NR> sum;
  sum.clear();
  const float *a = o.a, *b = o.b, *ahead = o.ahead;
  intptr_t k = 0;
  for (; k + kLanes <= o.depth; k += kLanes) {
    for (intptr_t line = 0; line < o.ahead_lines; ++line, ahead += kLanes) _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; ++i, ++a, b += NR * kLanes) sum.add(a, o.a_row, b);
  }
  for (; k < o.depth; ++k, ++a, b += NR * kLanes) sum.add(a, o.a_row, b);
  result = sum;
}

}  // namespace collage
#endif
