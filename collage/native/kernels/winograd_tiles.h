// The transforms of Winograd's convolution, one tile of 16 channels at a time.

#ifndef COLLAGE_NATIVE_KERNELS_WINOGRAD_TILES_H
#define COLLAGE_NATIVE_KERNELS_WINOGRAD_TILES_H

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
  static inline void in(const Floats x[3], Floats y[3]) {
    y[0] = x[0] + x[1];
    y[1] = x[1] - x[0];
    y[2] = x[2] - x[0];
  }
  static inline void out(const Floats x[3], Floats y[2]) {
    y[0] = x[0] + x[1];
    y[1] = x[0] - x[1] + x[2];
  }
};

template <>
struct Transform<4> {
  static constexpr int kOutputs = 2;
  static inline void in(const Floats x[4], Floats y[4]) {
    y[0] = x[2] - x[0];
    Transform<3>::in(x + 1, y + 1);
  }
  static inline void out(const Floats x[4], Floats y[2]) {
    Transform<3>::out(x + 1, y);
    y[0] += x[0];
  }
};

template <>
struct Transform<5> {
  static constexpr int kOutputs = 4;
  static constexpr float kRoot = 0.70710678f;
  static inline void in(const Floats x[5], Floats y[5]) {
    const Floats r = broadcast(kRoot), r2 = broadcast(2 * kRoot);
    const Floats half = broadcast(0.5f), two = broadcast(2), both = broadcast(2.5f);
    const Floats a = fnma(two, x[1], x[3]), b = fnma(two, x[0], x[2]);
    const Floats c = fnma(half, x[1], x[3]), d = fnma(half, x[0], x[2]);
    y[0] = fma(r, b, a);
    y[1] = fnma(r, b, a);
    y[2] = fma(r2, d, c);
    y[3] = fnma(r2, d, c);
    y[4] = fnma(both, x[2], x[0] + x[4]);
  }
  static inline void out(const Floats x[5], Floats y[4]) {
    const Floats r = broadcast(kRoot), two = broadcast(2), four = broadcast(4);
    const Floats half = broadcast(0.5f), eight = broadcast(8);
    const Floats a = x[0] + x[1], b = r * (x[0] - x[1]), c = x[2] + x[3], d = r * (x[2] - x[3]);
    y[0] = a + c;
    y[1] = fma(two, d, b);
    y[2] = half * fma(four, c, a);
    y[3] = fma(half, fma(eight, d, b), x[4]);
  }
};

template <>
struct Transform<6> {
  static constexpr int kOutputs = 4;
  static inline void in(const Floats x[6], Floats y[6]) {
    y[0] = fnma(broadcast(2.5f), x[2], x[0] + x[4]);
    Transform<5>::in(x + 1, y + 1);
  }
  static inline void out(const Floats x[6], Floats y[4]) {
    Transform<5>::out(x + 1, y);
    y[0] += x[0];
  }
};

// Points of one tile, `point` floats apart, from its first element, with `row` and `column` floats to the next ones.
template <int P>
inline void transform_in(const float *src, intptr_t row, intptr_t column, float *dst, intptr_t point) {
  Floats middle[P][P];
#pragma GCC unroll 8
  for (int j = 0; j < P; ++j) {
    Floats x[P], y[P];
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i) x[i] = load(src + i * row + j * column);
    Transform<P>::in(x, y);
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i) middle[i][j] = y[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < P; ++i) {
    Floats y[P];
    Transform<P>::in(middle[i], y);
#pragma GCC unroll 8
    for (int j = 0; j < P; ++j) store(dst + (i * P + j) * point, y[j]);
  }
}

struct Finish {
  Floats bias, low, high;
};

// Outputs of one tile, `row` and `column` floats apart; of those outside of `rows` and `columns` nothing is written.
template <int P, bool RESIDUAL>
inline void transform_out(const float *src, intptr_t point, const Finish &f, const float *residual, float *dst,
                          intptr_t row, intptr_t column, int64_t rows, int64_t columns) {
  constexpr int M = Transform<P>::kOutputs;
  Floats middle[M][P];
#pragma GCC unroll 8
  for (int j = 0; j < P; ++j) {
    Floats x[P], y[M];
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i) x[i] = load(src + (i * P + j) * point);
    Transform<P>::out(x, y);
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) middle[i][j] = y[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i) {
    if (i >= rows) break;
    Floats y[M];
    Transform<P>::out(middle[i], y);
#pragma GCC unroll 4
    for (int j = 0; j < M; ++j) {
      if (j >= columns) break;
      const intptr_t at = i * row + j * column;
      Floats value = y[j] + f.bias;
      if (RESIDUAL) value += load(residual + at);
      store(dst + at, clamp(value, f.low, f.high));
    }
  }
}

}  // namespace collage
#endif
