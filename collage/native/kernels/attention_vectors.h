// Functions of vectors in attention. To be included by attention.cpp alone.

#ifndef COLLAGE_NATIVE_KERNELS_ATTENTION_VECTORS_H
#define COLLAGE_NATIVE_KERNELS_ATTENTION_VECTORS_H

#include <string.h>

#include <algorithm>

#include "attention_cells.h"

namespace {

// e^x for x <= 0, and 0 below e^-80. NaN stays NaN.
INLINE void exponential(Vector &x) {
  const Integers small = x < -80.0f;
  const Vector bounded = small ? Vector{} - 80.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vector n = (bounded * 1.44269504089f + magic) - magic;
  const Vector r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
  const Vector found = p * (Vector)power;  // a cast of the bits
  x = small ? Vector{} : found;
}

// A vector in four parts, so that its lanes can be joined in few steps.
typedef float Quarter __attribute__((vector_size(16)));
struct Quarters {
  Quarter part[4];
};

INLINE void split(const Vector &x, Quarters &to) { memcpy(&to, &x, sizeof(x)); }

INLINE float sum(const Vector &x) {
  Quarters q;
  split(x, q);
  const Quarter four = (q.part[0] + q.part[1]) + (q.part[2] + q.part[3]);
  return (four[0] + four[1]) + (four[2] + four[3]);
}

INLINE float largest(const Vector &x) {
  Quarters q;
  split(x, q);
  const Quarter a = q.part[0] > q.part[1] ? q.part[0] : q.part[1], b = q.part[2] > q.part[3] ? q.part[2] : q.part[3];
  const Quarter four = a > b ? a : b;
  return std::max(std::max(four[0], four[1]), std::max(four[2], four[3]));
}

}  // namespace
#endif
