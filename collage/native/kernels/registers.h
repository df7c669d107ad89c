// One register of floats, for kernels that see channels in the same 128 or 256 bits: 16 floats of AVX-512, or 8 of AVX2,
// which are a half of a vector of 16. To be included after all other headers.

#ifndef COLLAGE_NATIVE_KERNELS_REGISTERS_H
#define COLLAGE_NATIVE_KERNELS_REGISTERS_H

#include "lanes.h"

namespace collage {

#ifdef COLLAGE_AVX2

using Register = __m256;
constexpr int kRegisters = 16;

[[gnu::always_inline]] inline Register load_register(Mask lanes, const float *from) {
  if (__builtin_expect(lanes == 0xff, 1)) return _mm256_loadu_ps(from);
  return _mm256_maskload_ps(from, eight_of(lanes, 0));
}
[[gnu::always_inline]] inline void store_register(float *to, Mask lanes, Register x) {
  if (__builtin_expect(lanes == 0xff, 1)) return _mm256_storeu_ps(to, x);
  _mm256_maskstore_ps(to, eight_of(lanes, 0), x);
}
[[gnu::always_inline]] inline Register in_register(float x) { return _mm256_set1_ps(x); }
[[gnu::always_inline]] inline Register fma(Register a, Register b, Register c) { return _mm256_fmadd_ps(a, b, c); }

// Zeros where there is no lane; NaN stays NaN, since both return their second operand then.
[[gnu::always_inline]] inline Register clamp(Mask lanes, Register x, Register low, Register high) {
  const Register found = _mm256_min_ps(high, _mm256_max_ps(low, x));
  return lanes == 0xff ? found : _mm256_and_ps(found, _mm256_castsi256_ps(eight_of(lanes, 0)));
}

// Element i of 128 bits becomes element i + BY.
template <int BY>
[[gnu::always_inline]] inline Register rotate(Register x) {
  return _mm256_permute_ps(x, BY == 1 ? 0x93 : 0x4E);
}

// The 128 bits j of a vector of 16 that are bits j ^ EXCHANGE of what is read: those of the other half are read there.
template <int EXCHANGE>
[[gnu::always_inline]] inline Register exchange(Register x) {
  return EXCHANGE & 1 ? _mm256_permute2f128_ps(x, x, 0x01) : x;
}
template <int EXCHANGE>
constexpr int64_t kOtherHalf = EXCHANGE >> 1;

#else

using Register = __m512;
constexpr int kRegisters = 32;

[[gnu::always_inline]] inline Register load_register(Mask lanes, const float *from) {
  return _mm512_maskz_loadu_ps(lanes, from);
}
[[gnu::always_inline]] inline void store_register(float *to, Mask lanes, Register x) {
  _mm512_mask_storeu_ps(to, lanes, x);
}
[[gnu::always_inline]] inline Register in_register(float x) { return _mm512_set1_ps(x); }

// Zeros where there is no lane; NaN stays NaN, since both return their second operand then.
[[gnu::always_inline]] inline Register clamp(Mask lanes, Register x, Register low, Register high) {
  return _mm512_maskz_min_ps(lanes, high, _mm512_maskz_max_ps(0xffff, low, x));
}

// Element i of 128 bits becomes element i + BY.
template <int BY>
[[gnu::always_inline]] inline Register rotate(Register x) {
  return _mm512_maskz_permute_ps(0xffff, x, BY == 1 ? 0x93 : 0x4E);
}

// The 128 bits j that are bits j ^ EXCHANGE of what is read.
template <int EXCHANGE>
[[gnu::always_inline]] inline Register exchange(Register x) {
  return EXCHANGE ? _mm512_maskz_shuffle_f32x4(0xffff, x, x, EXCHANGE == 1 ? 0xB1 : EXCHANGE == 2 ? 0x4E : 0x1B) : x;
}
template <int EXCHANGE>
constexpr int64_t kOtherHalf = 0;

#endif

constexpr int64_t kRegister = sizeof(Register) / sizeof(float);
constexpr int64_t kHalves = kLanes / kRegister;

// Of a vector's lanes, those of one of its registers.
inline Mask lanes_of_half(Mask lanes, int64_t half) {
  return kHalves == 1 ? lanes : Mask(lanes >> half * kRegister & ((1 << kRegister) - 1));
}

}  // namespace collage
#endif
