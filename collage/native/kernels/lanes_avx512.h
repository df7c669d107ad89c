// Sixteen floats in a register of AVX-512. To be included by lanes.h alone, whose other form is lanes_avx2.h.

#include "avx512.h"

namespace collage {

constexpr bool kAvx512 = true;  // a vector is one register, of which there are 32

using Floats = __m512;
using Choice = __mmask16;

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats broadcast(float x) { return _mm512_set1_ps(x); }

inline Floats load(const float *from) { return _mm512_loadu_ps(from); }
inline Floats load(Mask lanes, const float *from) { return _mm512_maskz_loadu_ps(lanes, from); }  // zeros elsewhere
inline void store(float *to, Floats x) { _mm512_storeu_ps(to, x); }
inline void store(float *to, Mask lanes, Floats x) { _mm512_mask_storeu_ps(to, lanes, x); }

inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
inline Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b

// The second one where either is NaN. (Not _mm512_max_ps: GCC 12 warns of the undefined register in it.)
inline Floats max(Floats a, Floats b) { return _mm512_maskz_max_ps(0xffff, a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_maskz_min_ps(0xffff, a, b); }

// Zeros where there is no lane.
inline Floats min(Mask lanes, Floats a, Floats b) { return _mm512_maskz_min_ps(lanes, a, b); }
inline Floats product(Mask lanes, Floats a, Floats b) { return _mm512_maskz_mul_ps(lanes, a, b); }

inline Floats absolute(Floats x) { return _mm512_maskz_range_ps(0xffff, x, x, 0b1011); }
inline Floats nearest(Floats x) { return _mm512_maskz_roundscale_ps(0xffff, x, 0x08); }

// `size` with the sign of x.
inline Floats with_sign(Floats size, Floats x) {
  const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(int(0x80000000u)));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(size), sign));
}

// 1 / x for ordinary numbers, to a unit in the last place: an estimate and one step of Newton's.
inline Floats reciprocal(Floats x) {
  const Floats r = _mm512_maskz_rcp14_ps(0xffff, x);
  return fma(fnma(x, r, broadcast(1.0f)), r, r);
}

inline Choice less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }      // not where either is NaN
inline Choice not_less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }  // also where either is NaN

inline Floats choose(Choice where, Floats here, Floats elsewhere) { return _mm512_mask_blend_ps(where, elsewhere, here); }

// p 2^n, for integers n, where `where` holds, and 0 elsewhere.
inline Floats scaled(Choice where, Floats p, Floats n) { return _mm512_maskz_scalef_ps(where, p, n); }

// p 2^n, for integers n from -126 to 127.
inline Floats scaled(Floats p, Floats n) { return _mm512_maskz_scalef_ps(0xffff, p, n); }

// `found`, and NaN where x is minus infinity.
inline Floats nan_at_minus_infinity(Floats found, Floats x) {
  return _mm512_fixupimm_ps(found, x, _mm512_set1_epi32(3 << 4 * 4), 0);  // class 4 of x: response 3
}

// The largest bits of each lane's magnitude, as integers, so that NaN counts as the largest.
using Integers = __m512i;
inline Integers no_bits() { return _mm512_setzero_si512(); }
inline Integers max_magnitude(Integers most, Floats x) {
  const __m512i size = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
  return _mm512_maskz_max_epi32(0xffff, most, size);
}
inline void store(uint32_t *to, Integers x) { _mm512_storeu_si512(to, x); }

// Element i of vector j becomes element j of vector i.
inline void transpose(Floats v[16]) {
  Floats t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_maskz_unpacklo_ps(0xffff, v[i], v[i + 1]);
    t[i + 1] = _mm512_maskz_unpackhi_ps(0xffff, v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      v[i + 2 * j] = _mm512_maskz_shuffle_ps(0xffff, t[i + j], t[i + 2 + j], 0x44);
      v[i + 2 * j + 1] = _mm512_maskz_shuffle_ps(0xffff, t[i + j], t[i + 2 + j], 0xee);
    }
#pragma GCC unroll 2
  for (int i = 0; i < 16; i += 8)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_maskz_shuffle_f32x4(0xffff, v[i + j], v[i + 4 + j], 0x88);
      t[i + 4 + j] = _mm512_maskz_shuffle_f32x4(0xffff, v[i + j], v[i + 4 + j], 0xdd);
    }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    v[j] = _mm512_maskz_shuffle_f32x4(0xffff, t[j], t[8 + j], 0x88);
    v[8 + j] = _mm512_maskz_shuffle_f32x4(0xffff, t[j], t[8 + j], 0xdd);
  }
}

// a0 b0 a1 b1 ...
inline void alternate(Floats a, Floats b, Floats &first, Floats &second) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  first = _mm512_permutex2var_ps(a, low, b);
  second = _mm512_permutex2var_ps(a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), b);
}

}  // namespace collage
