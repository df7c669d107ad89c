// Float32 to bfloat16 and back, without instructions for it.

#ifndef COLLAGE_NATIVE_KERNELS_BF16_H
#define COLLAGE_NATIVE_KERNELS_BF16_H

#include <immintrin.h>
#include <stdint.h>

namespace collage {

// To the nearest, and to the even one of two. Denormals stay denormal, infinity stays, and NaN becomes the quiet one of
// its sign: these are the bits that numpy's ml_dtypes has. (vcvtneps2bf16 takes denormals for zero.)
inline __m256i narrow(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x), high = _mm512_maskz_srli_epi32(0xffff, bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i rounded = _mm512_maskz_srli_epi32(0xffff, sum, 16);
  const __m512i sign = _mm512_and_si512(high, _mm512_set1_epi32(0x8000));
  const __m512i quiet = _mm512_or_si512(sign, _mm512_set1_epi32(0x7fc0));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_maskz_cvtepi32_epi16(0xffff, _mm512_mask_blend_epi32(nan, rounded, quiet));
}

inline __m512 widen(__m256i x) {
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, x);
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16));
}

inline __m512 load_bf16(__mmask16 mask, const uint16_t *from) {
  return widen(_mm256_maskz_loadu_epi16(mask, from));
}

inline void store_bf16(uint16_t *to, __mmask16 mask, __m512 x) { _mm256_mask_storeu_epi16(to, mask, narrow(x)); }

}  // namespace collage
#endif
