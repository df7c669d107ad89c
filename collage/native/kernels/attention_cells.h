// The cells of a cache, as they are written, and the vectors that they are read into. To be included by attention.cpp
// alone: what is here is compiled for each instruction set with what uses it.

#ifndef COLLAGE_NATIVE_KERNELS_ATTENTION_CELLS_H
#define COLLAGE_NATIVE_KERNELS_ATTENTION_CELLS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <type_traits>

#include "attention_items.h"
#include "kernels.h"

#define INLINE __attribute__((always_inline)) inline

#if COLLAGE_X86 && defined(COLLAGE_AVX2)
#include "attention_vectors_avx2.h"
#else
#include "attention_vectors.h"
#endif

namespace {

INLINE void put(float &to, float x) { to = x; }
INLINE void put(uint16_t &to, float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  to = uint16_t(x != x ? bits >> 16 | 0x40 : rounded >> 16);
}

// Writes numbers as multiples of a scale, -127 to 127 of them, and returns the scale. It is NaN where one of the numbers is
// not finite, so that what is made of them is, too.
INLINE float quantize(const float *from, int64_t count, int8_t *to, int64_t step) {
  float most = 0.0f, odd = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    most = std::max(most, fabsf(from[i]));
    odd += from[i] * 0.0f;
  }
  const float factor = most > 1e-30f ? 127.0f / most : 0.0f;  // else it may be infinite
  for (int64_t i = 0; i < count; ++i) {
    float x = from[i] * factor;
    x = x >= -127.0f ? x : -127.0f;  // NaN, too, which has no integer
    x = x <= 127.0f ? x : 127.0f;
    to[i * step] = int8_t(int32_t(x + (x < 0.0f ? -0.5f : 0.5f)));
  }
  return most / 127.0f + odd;
}

// Weights are floats, and for tiles bfloat16, to the nearest; denormals become zero then.
INLINE void narrow(float *to, const Vector &from) { store(to, from); }
#if COLLAGE_AMX
INLINE void narrow(uint16_t *to, const Vector &from) {
  Halves found;
  __asm__("vcvtneps2bf16 %1, %0" : "=v"(found) : "v"(from));
  memcpy(to, &found, sizeof found);
}
#endif

template <typename Cell>
constexpr bool kScaled = std::is_same_v<Cell, int8_t>;

}  // namespace
#endif
