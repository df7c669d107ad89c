// Vectors of numbers, and the cells of a cache that they are read from and written to. To be included by attention.cpp
// alone: vectors are the compiler's, and what is here is compiled for each instruction set with what uses it.

#ifndef COLLAGE_NATIVE_KERNELS_ATTENTION_CELLS_H
#define COLLAGE_NATIVE_KERNELS_ATTENTION_CELLS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <type_traits>

#include "attention_items.h"

#define INLINE __attribute__((always_inline)) inline

namespace {

typedef float Vector __attribute__((vector_size(64)));
typedef int32_t Integers __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef int8_t Bytes __attribute__((vector_size(16)));

using collage_attention::kLanes;

// The cells of a cache are floats, the upper halves of floats, or multiples of a scale that the cells of a token and head
// share.
INLINE void load(Vector &to, const float *from) { memcpy(&to, from, sizeof to); }
INLINE void load(Vector &to, const uint16_t *from) {
  Halves halves;
  memcpy(&halves, from, sizeof halves);
  to = (Vector)(__builtin_convertvector(halves, Integers) << 16);
}
INLINE void load(Vector &to, const int8_t *from) {
  Bytes bytes;
  memcpy(&bytes, from, sizeof bytes);
  to = __builtin_convertvector(__builtin_convertvector(bytes, Integers), Vector);
}

// Two vectors of cells that follow each other. Those of bfloat16 are not in order: the first vector has the even ones, the
// second the odd ones, which takes fewer instructions.
template <typename Cell>
INLINE void load_pair(Vector &first, Vector &second, const Cell *from) {
  load(first, from);
  load(second, from + kLanes);
}
INLINE void load_pair(Vector &first, Vector &second, const uint16_t *from) {
  Integers pairs;
  memcpy(&pairs, from, sizeof pairs);
  first = (Vector)(pairs << 16);
  second = (Vector)(pairs & int32_t(0xffff0000u));
}

// Two vectors in the order of such pairs put in that of numbers, and back.
template <typename Cell>
INLINE void in_order(Vector &first, Vector &second) {
  if constexpr (std::is_same_v<Cell, uint16_t>) {
    const Integers low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    const Vector begin = __builtin_shuffle(first, second, low), end = __builtin_shuffle(first, second, low + 8);
    first = begin;
    second = end;
  }
}
template <typename Cell>
INLINE void as_pairs(Vector &first, Vector &second) {
  if constexpr (std::is_same_v<Cell, uint16_t>) {
    const Integers even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    const Vector evens = __builtin_shuffle(first, second, even), odds = __builtin_shuffle(first, second, even + 1);
    first = evens;
    second = odds;
  }
}

INLINE void store(float *to, const Vector &from) { memcpy(to, &from, sizeof from); }

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

template <typename Cell>
constexpr bool kScaled = std::is_same_v<Cell, int8_t>;

}  // namespace
#endif
