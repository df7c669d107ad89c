// Products with weights that are stored in fewer bits than float32 and widened in registers.
//
// To be included after all other headers.

#ifndef COLLAGE_NATIVE_KERNELS_WIDENED_H
#define COLLAGE_NATIVE_KERNELS_WIDENED_H

#include "streamed.h"

namespace collage {

// A line, whose 32 bits are those of one column each: shifted up, and the numbers in their upper bits.

#ifdef COLLAGE_AVX2

struct Line {
  __m256i low, high;
};
[[gnu::always_inline]] inline Line line_at(const float *from) {
  return {_mm256_castps_si256(_mm256_load_ps(from)), _mm256_castps_si256(_mm256_load_ps(from + 8))};
}
template <typename Function>
[[gnu::always_inline]] inline Floats of_both(Line x, Function widen) {
  return {widen(x.low), widen(x.high)};
}
template <int BY>
[[gnu::always_inline]] inline __m256i up(__m256i x) {
  return BY ? _mm256_slli_epi32(x, BY) : x;
}
[[gnu::always_inline]] inline __m256 upper_half(__m256i x) {
  return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000u))));
}
[[gnu::always_inline]] inline __m256 upper_byte(__m256i x) { return _mm256_cvtepi32_ps(_mm256_srai_epi32(x, 24)); }
[[gnu::always_inline]] inline __m256 as_float(__m256i x) { return _mm256_castsi256_ps(x); }

#else

using Line = __m512i;
[[gnu::always_inline]] inline Line line_at(const float *from) { return _mm512_load_si512(from); }
template <typename Function>
[[gnu::always_inline]] inline Floats of_both(Line x, Function widen) {
  return widen(x);
}
template <int BY>
[[gnu::always_inline]] inline __m512i up(__m512i x) {
  return BY ? _mm512_maskz_slli_epi32(0xffff, x, BY) : x;
}
[[gnu::always_inline]] inline __m512 upper_half(__m512i x) {
  return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000u))));
}
[[gnu::always_inline]] inline __m512 upper_byte(__m512i x) {
  return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_srai_epi32(0xffff, x, 24));
}
[[gnu::always_inline]] inline __m512 as_float(__m512i x) { return _mm512_castsi512_ps(x); }

#endif

// Weights of bfloat16, of which a line has two k. `at<K>` has those of one of them.
struct Bf16Weights {
  static constexpr int kTogether = 2;
  static constexpr int kMostRows = kTileRows;  // of a tile
  template <int K>
  [[gnu::always_inline]] static Floats at(Line line) {
    return of_both(line, [](auto x) __attribute__((always_inline)) { return K ? upper_half(x) : as_float(up<16>(x)); });
  }
};

// The same of 8 bits, of which a line has four k.
struct Int8Weights {
  static constexpr int kTogether = 4;
  static constexpr int kMostRows = kAvx512 ? kTileRows : 5;  // AVX2 has no registers for what widens them beside 6
  template <int K>
  [[gnu::always_inline]] static Floats at(Line line) {
    return of_both(line, [](auto x) __attribute__((always_inline)) { return upper_byte(up<24 - 8 * K>(x)); });
  }
};

// Factors of which the rows are float32.
template <typename Weights>
struct Widened : Streamed {};

template <typename Weights, int K, int MR, int NR, int OF>
[[gnu::always_inline]] inline void add(Accumulators<MR, NR, OF> &sum, int j, const float *a, intptr_t a_row, Line line) {
  const Floats right = Weights::template at<K>(line);
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) sum.at[i][j] = fma(broadcast(a[i * a_row + K]), right, sum.at[i][j]);
  if constexpr (K + 1 < Weights::kTogether) add<Weights, K + 1>(sum, j, a, a_row, line);
}

template <typename Weights, int MR, int NR, int OF>
[[gnu::always_inline]] inline void multiply(const Widened<Weights> &o, Accumulators<MR, NR, OF> &result) {
  Accumulators<MR, NR, OF> sum;
  sum.clear();
  const float *a = static_cast<const float *>(o.a), *b = o.b, *ahead = o.ahead;
  for (intptr_t first = 0; first < o.lines; first += o.kStep) {
    prefetch(ahead, o.ahead_lines);
    const intptr_t last = std::min(first + o.kStep, o.lines);
    for (intptr_t line = first; line < last; ++line, a += Weights::kTogether, b += OF * kLanes)
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) add<Weights, 0>(sum, j, a, o.a_row, line_at(b + j * kLanes));
  }
  result = sum;
}

template <typename Weights, int MR, int NR>
void widened(const Streamed &o, void *c) {
  multiply_panel<MR, NR>(Widened<Weights>{o}, [&](const auto &sum, auto block) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < sum.kBlocks; ++j)
        store(static_cast<float *>(c) + i * kWide + (block + j) * kLanes, sum.at[i][j]);
  });
}

template <typename Weights, int NR>
constexpr auto kWidened = by_rows<StreamedTile, kTileRows>([](auto rows) { return widened<Weights, rows, NR>; });

// The tiles of a panel of so many blocks of columns.
template <typename Weights>
StreamedTiles widened_tiles(int wide) {
  return wide == 3 ? kWidened<Weights, 3> : wide == 2 ? kWidened<Weights, 2> : kWidened<Weights, 1>;
}

}  // namespace collage
#endif
