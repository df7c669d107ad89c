// Functions of a vector of results, as they leave a kernel.

#ifndef COLLAGE_NATIVE_KERNELS_EPILOGUE_H
#define COLLAGE_NATIVE_KERNELS_EPILOGUE_H

#include "lanes.h"

namespace collage {

// As `activation` in the parameters of kernels.
enum Activation : int64_t { kNone = 0, kGelu = 1, kTanh = 2, kSigmoid = 3, kSwish = 4, kGeluTanh = 5 };

// NaN stays NaN.
inline Floats clamp(Floats x, Floats low, Floats high) {
  const Floats raised = max(low, x);
  return min(high, raised);
}

// e^x, to 2 units in the last place; infinity beyond float's range, 0 below e^-80, because arithmetic with what is
// smaller than 1e-38 is slow (GELU of 64 x 3072 values, of which one in a hundred was: 66 us, not 18).
// x = n ln 2 + r, |r| <= ln 2 / 2.
inline Floats exponential(Floats x) {
  if constexpr (!kAvx512) x = min(broadcast(89.0f), x);  // whose e^x is infinite; `scaled` has no infinite n
  const Floats n = nearest(x * broadcast(1.44269504089f));
  Floats r = fnma(n, broadcast(0.693359375f), x);
  r = fnma(n, broadcast(-2.12194440e-4f), r);
  Floats p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r + broadcast(1.0f));
  return scaled(not_less(x, broadcast(-80.0f)), p, n);
}

// x (1 + erf(x / sqrt 2)) / 2 = max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, with erfc from Abramowitz & Stegun 7.1.26,
// which is off by 1.5e-7 at most. NaN at minus infinity, as the definition has it (and ONNX Runtime).
inline Floats gelu(Floats x) {
  const Floats one = broadcast(1.0f);
  const Floats size = min(broadcast(20.0f), absolute(x));  // erfc is 0 from there on
  const Floats t = reciprocal(fma(size, broadcast(0.3275911f * 0.70710678f), one));
  Floats p = broadcast(1.061405429f);
  p = fma(p, t, broadcast(-1.453152027f));
  p = fma(p, t, broadcast(1.421413741f));
  p = fma(p, t, broadcast(-0.284496736f));
  p = fma(p, t, broadcast(0.254829592f));
  const Floats half = size * broadcast(-0.5f);
  const Floats tail = half * p * t * exponential(half * size);
  const Floats found = max(zeros(), x) + tail;
  return nan_at_minus_infinity(found, x);
}

inline Floats sigmoid(Floats x) {
  const Floats one = broadcast(1.0f);
  return one / (one + exponential(-x));
}

// Of |x| by its exponential, with a polynomial near 0, where that would cancel.
inline Floats tangent(Floats x) {
  const Floats one = broadcast(1.0f), size = absolute(x), square = x * x;
  const Floats e = exponential(size * broadcast(-2.0f));
  const Floats far = (one - e) / (one + e);
  Floats p = broadcast(-5.70498872745e-3f);
  p = fma(p, square, broadcast(2.06390887954e-2f));
  p = fma(p, square, broadcast(-5.37397155531e-2f));
  p = fma(p, square, broadcast(1.33314422036e-1f));
  p = fma(p, square, broadcast(-3.33332819422e-1f));
  const Floats near = fma(p * square, size, size);
  return with_sign(choose(less(size, broadcast(0.625f)), near, far), x);
}

// x (1 + tanh u) / 2 = x sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Floats gelu_tanh(Floats x) {
  const Floats inner = fma(broadcast(0.044715f) * x, x * x, x);
  return x * sigmoid(inner * broadcast(1.5957691216f));
}

inline Floats activate(Floats x, int64_t activation) {
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
