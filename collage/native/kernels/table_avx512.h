// Bins, positions and leaf values of 64 rows in a register of AVX-512 (VBMI). To be included by table_lanes.h alone.

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx512vbmi,fma,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx512vbmi,fma,bmi2,popcnt")
#endif

namespace collage {

using Bytes = __m512i;
using Chosen = __mmask64;
constexpr int kRows = 64;  // rows of a register

#define COLLAGE_TABLE_INLINE [[gnu::always_inline]] inline

COLLAGE_TABLE_INLINE Bytes load_bytes(const void *from) { return _mm512_loadu_si512(from); }
COLLAGE_TABLE_INLINE void store_bytes(void *to, Bytes x) { _mm512_storeu_si512(to, x); }
COLLAGE_TABLE_INLINE Bytes no_bytes() { return _mm512_setzero_si512(); }
COLLAGE_TABLE_INLINE Bytes spread(uint8_t x) { return _mm512_set1_epi8(char(x)); }

// `right` where the bins are above `bin` and the position is `first`.
COLLAGE_TABLE_INLINE Bytes moved(Bytes position, Bytes bins, Bytes bin, Bytes first, Bytes right) {
  const Chosen above = _mm512_cmpgt_epi8_mask(bins, bin);
  return _mm512_mask_mov_epi8(position, _mm512_mask_cmpeq_epi8_mask(above, position, first), right);
}

// Twice the position, and one more where the bins are above `bin`.
COLLAGE_TABLE_INLINE Bytes deeper(Bytes position, Bytes bins, Bytes bin) {
  const Bytes twice = _mm512_add_epi8(position, position);
  return _mm512_mask_sub_epi8(twice, _mm512_cmpgt_epi8_mask(bins, bin), twice, _mm512_set1_epi8(-1));
}

// The bytes of a table at these places, of so many.
COLLAGE_TABLE_INLINE Bytes looked_up(const uint8_t *table, int64_t size, Bytes places) {
  const Bytes first = load_bytes(table);
  if (size <= 64) return _mm512_permutexvar_epi8(places, first);
  const Bytes low = _mm512_permutex2var_epi8(first, places, load_bytes(table + 64));
  if (size <= 128) return low;
  const Bytes high = _mm512_permutex2var_epi8(load_bytes(table + 128), places, load_bytes(table + 192));
  return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(places), high);
}

COLLAGE_TABLE_INLINE Bytes low_bytes(Bytes a, Bytes b) { return _mm512_unpacklo_epi8(a, b); }
COLLAGE_TABLE_INLINE Bytes high_bytes(Bytes a, Bytes b) { return _mm512_unpackhi_epi8(a, b); }
COLLAGE_TABLE_INLINE Bytes low_pairs(Bytes a, Bytes b) { return _mm512_unpacklo_epi16(a, b); }
COLLAGE_TABLE_INLINE Bytes high_pairs(Bytes a, Bytes b) { return _mm512_unpackhi_epi16(a, b); }
COLLAGE_TABLE_INLINE Bytes low_fours(Bytes a, Bytes b) { return _mm512_unpacklo_epi32(a, b); }
COLLAGE_TABLE_INLINE Bytes high_fours(Bytes a, Bytes b) { return _mm512_unpackhi_epi32(a, b); }

COLLAGE_TABLE_INLINE void add_to(float *sums, Bytes x) {
  _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_castsi512_ps(x)));
}
COLLAGE_TABLE_INLINE void add_to(double *sums, Bytes x) {
  _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), _mm512_castsi512_pd(x)));
}

constexpr int64_t kMostPlanes = 256;  // leaves whose values are looked up by bytes

// How many of 16 thresholds are below x.
COLLAGE_TABLE_INLINE int below(const float *thresholds, float x) {
  return __builtin_popcount(_mm512_cmp_ps_mask(_mm512_set1_ps(x), _mm512_loadu_ps(thresholds), _CMP_GT_OQ));
}
COLLAGE_TABLE_INLINE int below(const double *thresholds, double x) {
  const __m512d each = _mm512_set1_pd(x);
  return __builtin_popcount(_mm512_cmp_pd_mask(each, _mm512_loadu_pd(thresholds), _CMP_GT_OQ)) +
         __builtin_popcount(_mm512_cmp_pd_mask(each, _mm512_loadu_pd(thresholds + 8), _CMP_GT_OQ));
}

COLLAGE_TABLE_INLINE __m512 pair_of(const float *table, __m512i place) {  // of 32 numbers
  return _mm512_permutex2var_ps(_mm512_loadu_ps(table), place, _mm512_loadu_ps(table + 16));
}
COLLAGE_TABLE_INLINE __m512 four_of(const float *table, __m512i place) {  // of 64
  const __mmask16 upper = _mm512_test_epi32_mask(place, _mm512_set1_epi32(32));
  return _mm512_mask_mov_ps(pair_of(table, place), upper, pair_of(table + 32, place));
}

// The place on a level of the search tree is doubled, and one more where x is above the threshold there: by _CMP_GT_OQ,
// or by _CMP_NLE_UQ, if NaN is above.
template <int LEVEL>
COLLAGE_TABLE_INLINE __m512 level_of(const float *search, __m512i place) {
  const float *level = search + (1 << LEVEL);
  if constexpr (LEVEL == 0) {
    return _mm512_set1_ps(*level);
  } else if constexpr (LEVEL <= 4) {
    return _mm512_permutexvar_ps(place, _mm512_loadu_ps(level));
  } else if constexpr (LEVEL <= 5) {
    return pair_of(level, place);
  } else if constexpr (LEVEL <= 6) {
    return four_of(level, place);
  } else {
    const __mmask16 upper = _mm512_test_epi32_mask(place, _mm512_set1_epi32(64));
    return _mm512_mask_mov_ps(four_of(level, place), upper, four_of(level + 64, place));
  }
}

// With EQUAL, `equal` gets the lanes whose x is a threshold: these are all on the way.
template <int LEVELS, int HOW, bool EQUAL, int LEVEL = 0>
COLLAGE_TABLE_INLINE __m512i searched(const float *search, __m512 x, __m512i place, __mmask16 &equal) {
  if constexpr (LEVEL == LEVELS) {
    return place;
  } else {
    const __m512 threshold = level_of<LEVEL>(search, place);
    const __mmask16 above = _mm512_cmp_ps_mask(x, threshold, HOW);
    if constexpr (EQUAL) equal |= _mm512_cmp_ps_mask(x, threshold, _CMP_EQ_OQ);
    const __m512i twice = _mm512_add_epi32(place, place);
    const __m512i next = _mm512_mask_sub_epi32(twice, above, twice, _mm512_set1_epi32(-1));
    return searched<LEVELS, HOW, EQUAL, LEVEL + 1>(search, x, next, equal);
  }
}

COLLAGE_TABLE_INLINE void store_bins(int8_t *bins, __m512i places) {
  const __m128i narrow = _mm512_maskz_cvtepi32_epi8(0xffff, places);
  _mm_storeu_si128(reinterpret_cast<__m128i *>(bins), _mm_xor_si128(narrow, _mm_set1_epi8(-128)));
}

template <int LEVELS, int HOW>
COLLAGE_TABLE_INLINE void sixteen_bins(const float *search, const float *, const float *x, int8_t *bins) {
  __mmask16 equal;
  store_bins(bins, searched<LEVELS, HOW, false>(search, _mm512_loadu_ps(x), _mm512_setzero_si512(), equal));
}

// Of doubles, first the bins of the next lower floats among the next lower floats of thresholds, and then what follows
// from the doubles if these are the same.
template <int LEVELS, int HOW>
COLLAGE_TABLE_INLINE void sixteen_bins(const float *search, const double *sorted, const double *x, int8_t *bins) {
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __m512d low = _mm512_loadu_pd(x), high = _mm512_loadu_pd(x + 8);
  const __m512 narrow = _mm512_insertf32x8(
      _mm512_castps256_ps512(_mm512_cvt_roundpd_ps(low, kDown)), _mm512_cvt_roundpd_ps(high, kDown), 1);
  __mmask16 equal = 0;
  __m512i places = searched<LEVELS, HOW, true>(search, narrow, _mm512_setzero_si512(), equal);
  while (equal) {
    const __m512d of_low = _mm512_i32gather_pd(_mm512_castsi512_si256(places), sorted, 8);
    const __m512d of_high = _mm512_i32gather_pd(_mm512_extracti64x4_epi64(places, 1), sorted, 8);
    const __mmask16 above = __mmask16(
        _mm512_cmp_pd_mask(of_low, low, _CMP_LT_OQ) | _mm512_cmp_pd_mask(of_high, high, _CMP_LT_OQ) << 8);
    equal = above;
    places = _mm512_mask_sub_epi32(places, above, places, _mm512_set1_epi32(-1));
  }
  store_bins(bins, places);
}

// Rows of 16 floats as columns.
COLLAGE_TABLE_INLINE void transpose_floats(const float *from, int64_t stride, float *const *to, int64_t row) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(from + i * stride);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    const __m512d low[2] = {_mm512_castps_pd(b[i]), _mm512_castps_pd(b[i + 2])};
    const __m512d high[2] = {_mm512_castps_pd(b[i + 1]), _mm512_castps_pd(b[i + 3])};
    a[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low[0], low[1]));
    a[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low[0], low[1]));
    a[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high[0], high[1]));
    a[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high[0], high[1]));
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
    b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
    b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
    b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_ps(to[i] + row, _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88));
    _mm512_storeu_ps(to[i + 8] + row, _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd));
    _mm512_storeu_ps(to[i + 4] + row, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88));
    _mm512_storeu_ps(to[i + 12] + row, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xdd));
  }
}

// Rows of 8 doubles as columns.
COLLAGE_TABLE_INLINE void transpose_doubles(const double *from, int64_t stride, double *const *to, int64_t row) {
  __m512d a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = _mm512_loadu_pd(from + i * stride);
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm512_unpacklo_pd(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_pd(a[i], a[i + 1]);
  }
  for (int i = 0; i < 2; ++i)
    for (int half = 0; half < 2; ++half) {
      const __m512d one = b[4 * half + i], other = b[4 * half + i + 2];
      a[4 * half + i] = _mm512_shuffle_f64x2(one, other, 0x88);
      a[4 * half + i + 2] = _mm512_shuffle_f64x2(one, other, 0xdd);
    }
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_pd(to[i] + row, _mm512_shuffle_f64x2(a[i], a[4 + i], 0x88));
    _mm512_storeu_pd(to[i + 4] + row, _mm512_shuffle_f64x2(a[i], a[4 + i], 0xdd));
  }
}

constexpr int64_t kDoubles = 8;  // rows and columns of that
constexpr int64_t kTranspose = 16;  // rows and columns of that

}  // namespace collage
