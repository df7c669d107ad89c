// Functions of a vector of results, as they leave a kernel.

#ifndef COLLAGE_NATIVE_KERNELS_EPILOGUE_H
#define COLLAGE_NATIVE_KERNELS_EPILOGUE_H

#include <immintrin.h>
#include <stdint.h>

namespace collage {

// As `activation` in the parameters of kernels.
enum Activation : int64_t { kNone = 0, kGelu = 1, kTanh = 2, kSigmoid = 3, kSwish = 4, kGeluTanh = 5 };

// NaN stays NaN. (Not _mm512_max_ps: GCC 12 warns of the undefined register in it.)
inline __m512 clamp(__m512 x, __m512 low, __m512 high) {
  const __m512 raised = _mm512_maskz_max_ps(0xffff, low, x);
  return _mm512_maskz_min_ps(0xffff, high, raised);
}

inline __m512 absolute(__m512 x) { return _mm512_maskz_range_ps(0xffff, x, x, 0b1011); }

// e^x, to 2 units in the last place; infinity beyond float's range, 0 below e^-80, because arithmetic with what is
// smaller than 1e-38 is slow (GELU of 64 x 3072 values, of which one in a hundred was: 66 us, not 18).
// x = n ln 2 + r, |r| <= ln 2 / 2.
inline __m512 exponential(__m512 x) {
  const __m512 n = _mm512_maskz_roundscale_ps(0xffff, x * _mm512_set1_ps(1.44269504089f), 0x08);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, r * r, r + _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-80.0f), _CMP_NLT_UQ), p, n);
}

// 1 / x for ordinary numbers, to a unit in the last place: an estimate and one step of Newton's.
inline __m512 reciprocal(__m512 x) {
  const __m512 r = _mm512_maskz_rcp14_ps(0xffff, x);
  return _mm512_fmadd_ps(_mm512_fnmadd_ps(x, r, _mm512_set1_ps(1.0f)), r, r);
}

// x (1 + erf(x / sqrt 2)) / 2 = max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, with erfc from Abramowitz & Stegun 7.1.26,
// which is off by 1.5e-7 at most. NaN at minus infinity, as the definition has it (and ONNX Runtime).
inline __m512 gelu(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 size = _mm512_maskz_min_ps(0xffff, _mm512_set1_ps(20.0f), absolute(x));  // erfc is 0 from there on
  const __m512 t = reciprocal(_mm512_fmadd_ps(size, _mm512_set1_ps(0.3275911f * 0.70710678f), one));
  __m512 p = _mm512_set1_ps(1.061405429f);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
  const __m512 half = size * _mm512_set1_ps(-0.5f);
  const __m512 tail = half * p * t * exponential(half * size);
  const __m512 found = _mm512_maskz_max_ps(0xffff, _mm512_setzero_ps(), x) + tail;
  const __m512i nan_of_minus_infinity = _mm512_set1_epi32(3 << 4 * 4);  // class 4 of x: response 3
  return _mm512_fixupimm_ps(found, x, nan_of_minus_infinity, 0);
}

inline __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  return one / (one + exponential(-x));
}

// Of |x| by its exponential, with a polynomial near 0, where that would cancel.
inline __m512 tangent(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), size = absolute(x), square = x * x;
  const __m512 e = exponential(size * _mm512_set1_ps(-2.0f));
  const __m512 far = (one - e) / (one + e);
  __m512 p = _mm512_set1_ps(-5.70498872745e-3f);
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.06390887954e-2f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-5.37397155531e-2f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(1.33314422036e-1f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-3.33332819422e-1f));
  const __m512 near = _mm512_fmadd_ps(p * square, size, size);
  const __m512 found = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(size, _mm512_set1_ps(0.625f), _CMP_LT_OQ), far, near);
  // With the sign of x.
  const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(int(0x80000000u)));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(found), sign));
}

// x (1 + tanh u) / 2 = x sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline __m512 gelu_tanh(__m512 x) {
  const __m512 inner = _mm512_fmadd_ps(_mm512_set1_ps(0.044715f) * x, x * x, x);
  return x * sigmoid(inner * _mm512_set1_ps(1.5957691216f));
}

inline __m512 activate(__m512 x, int64_t activation) {
  switch (activation) {
    case kGelu: return gelu(x);
    case kTanh: return tangent(x);
    case kSigmoid: return sigmoid(x);
    case kSwish: return x * sigmoid(x);
    case kGeluTanh: return gelu_tanh(x);
    default: return x;
  }
}

}  // namespace collage
#endif
