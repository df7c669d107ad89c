// The transforms of Winograd's convolution, one tile of 16 channels at a time.

#ifndef COLLAGE_NATIVE_KERNELS_WINOGRAD_TILES_H
#define COLLAGE_NATIVE_KERNELS_WINOGRAD_TILES_H

#include <immintrin.h>
#include <stdint.h>

#include "epilogue.h"
#include "tile.h"

namespace collage {

// By the number of points in each direction: those of the input, and the outputs, of which there are kOutputs, from
// the products. Interpolated at +-r, +-2r with r^2 = 1/2 or at +-1, at 0 when the number is even, and at infinity.
//
// For 6 points that has a fifth of the error of the usual 0, infinity, +-1, +-2 (2.5e-6 of the largest result, not
// 1.1e-5, for 256 channels), and no more arithmetic.
template <int P>
struct Transform;

template <>
struct Transform<3> {
  static constexpr int kOutputs = 2;
  static inline void in(const __m512 x[3], __m512 y[3]) {
    y[0] = x[0] + x[1];
    y[1] = x[1] - x[0];
    y[2] = x[2] - x[0];
  }
  static inline void out(const __m512 x[3], __m512 y[2]) {
    y[0] = x[0] + x[1];
    y[1] = x[0] - x[1] + x[2];
  }
};

template <>
struct Transform<4> {
  static constexpr int kOutputs = 2;
  static inline void in(const __m512 x[4], __m512 y[4]) {
    y[0] = x[2] - x[0];
    Transform<3>::in(x + 1, y + 1);
  }
  static inline void out(const __m512 x[4], __m512 y[2]) {
    Transform<3>::out(x + 1, y);
    y[0] += x[0];
  }
};

template <>
struct Transform<5> {
  static constexpr int kOutputs = 4;
  static constexpr float kRoot = 0.70710678f;
  static inline void in(const __m512 x[5], __m512 y[5]) {
    const __m512 r = _mm512_set1_ps(kRoot), r2 = _mm512_set1_ps(2 * kRoot);
    const __m512 half = _mm512_set1_ps(0.5f), two = _mm512_set1_ps(2), both = _mm512_set1_ps(2.5f);
    const __m512 a = _mm512_fnmadd_ps(two, x[1], x[3]), b = _mm512_fnmadd_ps(two, x[0], x[2]);
    const __m512 c = _mm512_fnmadd_ps(half, x[1], x[3]), d = _mm512_fnmadd_ps(half, x[0], x[2]);
    y[0] = _mm512_fmadd_ps(r, b, a);
    y[1] = _mm512_fnmadd_ps(r, b, a);
    y[2] = _mm512_fmadd_ps(r2, d, c);
    y[3] = _mm512_fnmadd_ps(r2, d, c);
    y[4] = _mm512_fnmadd_ps(both, x[2], x[0] + x[4]);
  }
  static inline void out(const __m512 x[5], __m512 y[4]) {
    const __m512 r = _mm512_set1_ps(kRoot), two = _mm512_set1_ps(2), four = _mm512_set1_ps(4);
    const __m512 half = _mm512_set1_ps(0.5f), eight = _mm512_set1_ps(8);
    const __m512 a = x[0] + x[1], b = r * (x[0] - x[1]), c = x[2] + x[3], d = r * (x[2] - x[3]);
    y[0] = a + c;
    y[1] = _mm512_fmadd_ps(two, d, b);
    y[2] = half * _mm512_fmadd_ps(four, c, a);
    y[3] = _mm512_fmadd_ps(half, _mm512_fmadd_ps(eight, d, b), x[4]);
  }
};

template <>
struct Transform<6> {
  static constexpr int kOutputs = 4;
  static inline void in(const __m512 x[6], __m512 y[6]) {
    y[0] = _mm512_fnmadd_ps(_mm512_set1_ps(2.5f), x[2], x[0] + x[4]);
    Transform<5>::in(x + 1, y + 1);
  }
  static inline void out(const __m512 x[6], __m512 y[4]) {
    Transform<5>::out(x + 1, y);
    y[0] += x[0];
  }
};

// Points of one tile, `point` floats apart, from its first element, with `row` and `column` floats to the next ones.
template <int P>
inline void transform_in(const float *src, intptr_t row, intptr_t column, float *dst, intptr_t point) {
  __m512 middle[P][P];
#pragma GCC unroll 8
  for (int j = 0; j < P; ++j) {
    __m512 x[P], y[P];
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i) x[i] = _mm512_load_ps(src + i * row + j * column);
    Transform<P>::in(x, y);
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i) middle[i][j] = y[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < P; ++i) {
    __m512 y[P];
    Transform<P>::in(middle[i], y);
#pragma GCC unroll 8
    for (int j = 0; j < P; ++j) _mm512_store_ps(dst + (i * P + j) * point, y[j]);
  }
}

struct Finish {
  __m512 bias, low, high;
};

// Outputs of one tile, `row` and `column` floats apart; of those outside of `rows` and `columns` nothing is written.
template <int P, bool RESIDUAL>
inline void transform_out(const float *src, intptr_t point, const Finish &f, const float *residual, float *dst,
                          intptr_t row, intptr_t column, int64_t rows, int64_t columns) {
  constexpr int M = Transform<P>::kOutputs;
  __m512 middle[M][P];
#pragma GCC unroll 8
  for (int j = 0; j < P; ++j) {
    __m512 x[P], y[M];
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i) x[i] = _mm512_load_ps(src + (i * P + j) * point);
    Transform<P>::out(x, y);
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) middle[i][j] = y[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i) {
    if (i >= rows) break;
    __m512 y[M];
    Transform<P>::out(middle[i], y);
#pragma GCC unroll 4
    for (int j = 0; j < M; ++j) {
      if (j >= columns) break;
      const intptr_t at = i * row + j * column;
      __m512 value = y[j] + f.bias;
      if (RESIDUAL) value += _mm512_load_ps(residual + at);
      _mm512_store_ps(dst + at, clamp(value, f.low, f.high));
    }
  }
}

}  // namespace collage
#endif
