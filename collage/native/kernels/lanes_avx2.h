// Sixteen floats in two registers of AVX2. To be included by lanes.h alone, whose other form is lanes_avx512.h.

// From here on the compiler may use AVX2, whatever its flags say.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

namespace collage {

constexpr bool kAvx512 = false;  // a vector is two registers, of which there are 16

struct Floats {
  __m256 low, high;
};
using Choice = Floats;  // all bits of a lane, or none

#define COLLAGE_LANES [[gnu::always_inline]] inline

COLLAGE_LANES Floats operator+(Floats a, Floats b) { return {a.low + b.low, a.high + b.high}; }
COLLAGE_LANES Floats operator-(Floats a, Floats b) { return {a.low - b.low, a.high - b.high}; }
COLLAGE_LANES Floats operator*(Floats a, Floats b) { return {a.low * b.low, a.high * b.high}; }
COLLAGE_LANES Floats operator/(Floats a, Floats b) { return {a.low / b.low, a.high / b.high}; }
COLLAGE_LANES Floats operator-(Floats a) { return {-a.low, -a.high}; }
COLLAGE_LANES Floats &operator+=(Floats &a, Floats b) { return a = a + b; }

COLLAGE_LANES Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
COLLAGE_LANES Floats broadcast(float x) {
  const __m256 each = _mm256_set1_ps(x);
  return {each, each};
}

// The 8 lanes from `first` on as a mask of AVX2.
COLLAGE_LANES __m256i eight_of(Mask lanes, int first) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(lanes >> first), bits), bits);
}

COLLAGE_LANES Floats load(const float *from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
COLLAGE_LANES Floats load(Mask lanes, const float *from) {  // zeros elsewhere
  if (__builtin_expect(lanes == kAllLanes, 1)) return load(from);
  return {_mm256_maskload_ps(from, eight_of(lanes, 0)), _mm256_maskload_ps(from + 8, eight_of(lanes, 8))};
}
COLLAGE_LANES void store(float *to, Floats x) {
  _mm256_storeu_ps(to, x.low);
  _mm256_storeu_ps(to + 8, x.high);
}
COLLAGE_LANES void store(float *to, Mask lanes, Floats x) {
  if (__builtin_expect(lanes == kAllLanes, 1)) return store(to, x);
  _mm256_maskstore_ps(to, eight_of(lanes, 0), x.low);
  _mm256_maskstore_ps(to + 8, eight_of(lanes, 8), x.high);
}

COLLAGE_LANES Floats fma(Floats a, Floats b, Floats c) {  // a b + c
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
COLLAGE_LANES Floats fnma(Floats a, Floats b, Floats c) {  // c - a b
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}

// The second one where either is NaN.
COLLAGE_LANES Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
COLLAGE_LANES Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }

COLLAGE_LANES Floats both(Floats bits, Floats x) {
  return {_mm256_and_ps(bits.low, x.low), _mm256_and_ps(bits.high, x.high)};
}

// x, and zeros where there is no lane.
COLLAGE_LANES Floats only(Mask lanes, Floats x) {
  if (__builtin_expect(lanes == kAllLanes, 1)) return x;
  return both({_mm256_castsi256_ps(eight_of(lanes, 0)), _mm256_castsi256_ps(eight_of(lanes, 8))}, x);
}
COLLAGE_LANES Floats min(Mask lanes, Floats a, Floats b) { return only(lanes, min(a, b)); }
COLLAGE_LANES Floats product(Mask lanes, Floats a, Floats b) { return only(lanes, a * b); }

COLLAGE_LANES Floats absolute(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
}
COLLAGE_LANES Floats nearest(Floats x) {
  constexpr int kHow = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kHow), _mm256_round_ps(x.high, kHow)};
}

// `size` with the sign of x.
COLLAGE_LANES Floats with_sign(Floats size, Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(size.low, _mm256_and_ps(sign, x.low)), _mm256_or_ps(size.high, _mm256_and_ps(sign, x.high))};
}

COLLAGE_LANES Floats reciprocal(Floats x) { return broadcast(1.0f) / x; }

template <int HOW>
COLLAGE_LANES Choice compare(Floats a, Floats b) {
  return {_mm256_cmp_ps(a.low, b.low, HOW), _mm256_cmp_ps(a.high, b.high, HOW)};
}
COLLAGE_LANES Choice less(Floats a, Floats b) { return compare<_CMP_LT_OQ>(a, b); }       // not where either is NaN
COLLAGE_LANES Choice not_less(Floats a, Floats b) { return compare<_CMP_NLT_UQ>(a, b); }  // also where either is NaN

COLLAGE_LANES Floats choose(Choice where, Floats here, Floats elsewhere) {
  return {_mm256_blendv_ps(elsewhere.low, here.low, where.low), _mm256_blendv_ps(elsewhere.high, here.high, where.high)};
}

// 2^n for integers n between -126 and 127.
COLLAGE_LANES __m256 power_of_two(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}

// p 2^n, for integers n, where `where` holds, and 0 elsewhere. In two steps, since 2^n may be infinite where p 2^n is not.
COLLAGE_LANES __m256 scaled_eight(__m256 p, __m256 n) {
  const __m256 within = _mm256_max_ps(_mm256_set1_ps(-252.0f), _mm256_min_ps(_mm256_set1_ps(254.0f), n));
  const __m256 half = _mm256_floor_ps(within * _mm256_set1_ps(0.5f));
  return p * power_of_two(half) * power_of_two(within - half);
}
COLLAGE_LANES Floats scaled(Choice where, Floats p, Floats n) {
  return both(where, {scaled_eight(p.low, n.low), scaled_eight(p.high, n.high)});
}
COLLAGE_LANES Floats scaled(Floats p, Floats n) { return {p.low * power_of_two(n.low), p.high * power_of_two(n.high)}; }

// `found`, and NaN where x is minus infinity.
COLLAGE_LANES Floats nan_at_minus_infinity(Floats found, Floats x) {
  const Choice there = compare<_CMP_EQ_OQ>(x, broadcast(-__builtin_inff()));
  return {_mm256_or_ps(found.low, there.low), _mm256_or_ps(found.high, there.high)};
}

// The largest bits of each lane's magnitude, as integers, so that NaN counts as the largest.
struct Integers {
  __m256i low, high;
};
COLLAGE_LANES Integers no_bits() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
COLLAGE_LANES Integers max_magnitude(Integers most, Floats x) {
  const Floats size = absolute(x);
  return {_mm256_max_epi32(most.low, _mm256_castps_si256(size.low)),
          _mm256_max_epi32(most.high, _mm256_castps_si256(size.high))};
}
COLLAGE_LANES void store(uint32_t *to, Integers x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), x.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + 8), x.high);
}

// Element i of vector j becomes element j of vector i, for 8 x 8 of them.
COLLAGE_LANES void transpose_eight(__m256 v[8]) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      v[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
      v[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
    }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    t[j] = _mm256_permute2f128_ps(v[j], v[4 + j], 0x20);
    t[4 + j] = _mm256_permute2f128_ps(v[j], v[4 + j], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) v[i] = t[i];
}

// The same for 16 x 16, in quarters, of which two change places.
COLLAGE_LANES void transpose(Floats v[16]) {
  __m256 quarter[4][8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    quarter[0][i] = v[i].low;
    quarter[1][i] = v[i].high;
    quarter[2][i] = v[8 + i].low;
    quarter[3][i] = v[8 + i].high;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) transpose_eight(quarter[i]);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    v[i] = {quarter[0][i], quarter[2][i]};
    v[8 + i] = {quarter[1][i], quarter[3][i]};
  }
}

// a0 b0 a1 b1 ... of eight each
COLLAGE_LANES Floats alternate_eight(__m256 a, __m256 b) {
  const __m256 low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
COLLAGE_LANES void alternate(Floats a, Floats b, Floats &first, Floats &second) {
  first = alternate_eight(a.low, b.low);
  second = alternate_eight(a.high, b.high);
}

#undef COLLAGE_LANES

}  // namespace collage
