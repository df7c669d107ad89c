// The innermost loop of matrix products: a tile of the result held in registers.
//
// C[row][column] = sum over k of A[row][k] * B[k][column]. The elements of A are broadcast. B is packed: for each k
// the 16 * OF columns of one panel, one k after the other.
//
// With AVX-512, MR * NR accumulators and NR + 1 more registers must fit in 32: 14x2, 8x3, 6x4, 28x1. Any of these
// reaches 95% of what two fused multiply-adds a cycle are (Zen 5: 250-257 GFLOP/s of 266 at 4.15 GHz, from the L1
// cache). With AVX2 a vector is two registers of 16, so the columns of a panel are computed one after the other: 6x1.

#ifndef COLLAGE_NATIVE_KERNELS_TILE_H
#define COLLAGE_NATIVE_KERNELS_TILE_H

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "lanes.h"

namespace collage {

// Rows of the largest tile, where there are `rows` of them with AVX-512.
constexpr int tile_rows(int rows) { return kAvx512 ? rows : 6; }

// Blocks of columns of a tile of so many rows. Fewer rows need more columns, or sums wait for each other.
constexpr int tile_blocks(int rows, int blocks) {
  return kAvx512 ? blocks : std::min(blocks, rows < 3 ? 3 : rows < 4 ? 2 : 1);
}

template <int N>
using Constant = std::integral_constant<int, N>;

// make(rows) for 1 to MOST rows, at their numbers; nothing at 0.
template <typename Function, typename Make, int... N>
constexpr auto by_rows(Make make, std::integer_sequence<int, N...>) {
  return std::array<Function, sizeof...(N) + 1>{nullptr, make(Constant<N + 1>())...};
}
template <typename Function, int MOST, typename Make>
constexpr auto by_rows(Make make) {
  return by_rows<Function>(make, std::make_integer_sequence<int, MOST>());
}

// NR blocks of columns, of OF that B's panel has.
template <int MR, int NR, int OF = NR>
struct Accumulators {
  static constexpr int kBlocks = NR;
  Floats at[MR][NR];

  __attribute__((always_inline)) void clear() {
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) at[i][j] = zeros();
  }

  // One k: `a` is its column of A, with `row` floats from row to row, `b` its row of B.
  __attribute__((always_inline)) void add(const float *a, intptr_t row, const float *b) {
    Floats right[NR];
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) right[j] = load(b + j * kLanes);
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i) {
      const Floats left = broadcast(a[i * row]);
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) at[i][j] = fma(left, right[j], at[i][j]);
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

  intptr_t steps() const { return blocks * taps; }  // with each of which that is prefetched
};

template <int MR, int NR, int OF>
__attribute__((always_inline)) inline void multiply(const Blocked &o, Accumulators<MR, NR, OF> &result) {
  Accumulators<MR, NR, OF> sum;
  sum.clear();
  const float *b = o.b, *ahead = o.ahead;
  for (intptr_t tap = 0; tap < o.taps; ++tap) {
    const float *a = o.a + tap * o.a_tap;
    for (intptr_t block = 0; block < o.blocks; ++block, a += o.a_block) {
      for (intptr_t line = 0; line < o.ahead_lines; ++line, ahead += kLanes) _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 4
      for (int k = 0; k < kLanes; ++k, b += OF * kLanes) sum.add(a + k, kLanes, b);
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

  intptr_t steps() const { return depth / kLanes; }  // with each of which that is prefetched
};

template <int MR, int NR, int OF>
__attribute__((always_inline)) inline void multiply(const Plain &o, Accumulators<MR, NR, OF> &result) {
  Accumulators<MR, NR, OF> sum;
  sum.clear();
  const float *a = o.a, *b = o.b, *ahead = o.ahead;
  intptr_t k = 0;
  for (; k + kLanes <= o.depth; k += kLanes) {
    for (intptr_t line = 0; line < o.ahead_lines; ++line, ahead += kLanes) _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; ++i, ++a, b += OF * kLanes) sum.add(a, o.a_row, b);
  }
  for (; k < o.depth; ++k, ++a, b += OF * kLanes) sum.add(a, o.a_row, b);
  result = sum;
}

// A panel's NR blocks of columns, in one tile or one after the other: `use` gets the sums of each, and its first block.
template <int MR, int NR, int FIRST = 0, typename Operands, typename Use>
__attribute__((always_inline)) inline void multiply_panel(const Operands &o, Use use) {
  constexpr int kHere = std::min(tile_blocks(MR, NR), NR - FIRST);
  Accumulators<MR, kHere, NR> sum;
  if constexpr (kHere == NR) {
    multiply(o, sum);
  } else {
    Operands part = o;  // of what is prefetched, too
    const intptr_t before = o.ahead_lines * FIRST / NR;
    part.b += FIRST * kLanes;
    part.ahead += before * o.steps() * kLanes;
    part.ahead_lines = o.ahead_lines * (FIRST + kHere) / NR - before;
    multiply(part, sum);
  }
  use(sum, Constant<FIRST>());
  if constexpr (FIRST + kHere < NR) multiply_panel<MR, NR, FIRST + kHere>(o, use);
}

}  // namespace collage
#endif
