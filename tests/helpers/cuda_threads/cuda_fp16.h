// CUDA's float16 on a CPU: what TVM's source uses of cuda_fp16.h. Sums, products and quotients are rounded once, as on a
// GPU, since those of two float16 numbers are rounded in float32 to more than twice as many bits first.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace collage {

inline uint16_t half_bits(float number) {
  uint32_t bits;
  memcpy(&bits, &number, 4);
  uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  float most = std::fabs(number);
  if (most >= 65520.0f) return uint16_t(sign | 0x7c00u);
  if (most == 0) return uint16_t(sign);
  int exponent = 0;
  std::frexp(most, &exponent);
  float step = std::ldexp(1.0f, std::max(exponent - 11, -24));
  auto steps = uint32_t(std::nearbyint(most / step));  // up to 2048, to the even one of two
  if (exponent < -13) return uint16_t(sign | steps);
  return uint16_t(sign | (uint32_t(exponent + 13) * 1024 + steps));
}
inline float half_number(uint16_t bits) {
  int exponent = bits >> 10 & 31, rest = bits & 1023;
  float sign = bits >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return rest ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(float(1024 + rest), exponent - 25) : std::ldexp(float(rest), -24));
}

}  // namespace collage

struct __half {
  uint16_t bits;
  __half() = default;
  __half(const volatile __half& other) : bits(other.bits) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  __half(T number) : bits(collage::half_bits(float(number))) {}
  __half& operator=(const __half& other) { return bits = other.bits, *this; }
  void operator=(const __half& other) volatile { bits = other.bits; }
  operator float() const { return collage::half_number(bits); }
};
using half = __half;
struct __half2 { __half x, y; };
using half2 = __half2;
inline half2 make_half2(half x, half y) { return {x, y}; }

inline half operator+(half a, half b) { return float(a) + float(b); }
inline half operator-(half a, half b) { return float(a) - float(b); }
inline half operator*(half a, half b) { return float(a) * float(b); }
inline half __hmul_rn(half a, half b) { return a * b; }
inline half operator/(half a, half b) { return float(a) / float(b); }
inline bool __hgt(half a, half b) { return float(a) > float(b); }
inline bool __hlt(half a, half b) { return float(a) < float(b); }
inline float __half2float(half number) { return number; }
inline half __float2half(float number) { return number; }
inline half __float2half_rn(float number) { return number; }
#define COLLAGE_HALF(NAME, FLOAT) \
  inline half NAME(half number) { return FLOAT(float(number)); }
COLLAGE_HALF(hexp, expf)
COLLAGE_HALF(hlog, logf)
COLLAGE_HALF(hsqrt, sqrtf)
COLLAGE_HALF(hrsqrt, rsqrtf)
COLLAGE_HALF(htanh, tanhf)
COLLAGE_HALF(herf, erff)
COLLAGE_HALF(hfloor, floorf)
COLLAGE_HALF(hceil, ceilf)
COLLAGE_HALF(htrunc, truncf)
COLLAGE_HALF(hrint, nearbyintf)
COLLAGE_HALF(__habs, fabsf)
inline half hpow(half a, half b) { return powf(a, b); }
