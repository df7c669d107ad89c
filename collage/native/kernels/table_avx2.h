// Bins, positions and leaf values of 32 rows in a register of AVX2. To be included by table_lanes.h alone.

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,bmi2,popcnt")
#endif

namespace collage {

using Bytes = __m256i;
constexpr int kRows = 32;  // rows of a register

#define COLLAGE_TABLE_INLINE [[gnu::always_inline]] inline

COLLAGE_TABLE_INLINE Bytes load_bytes(const void *from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
}
COLLAGE_TABLE_INLINE void store_bytes(void *to, Bytes x) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), x); }
COLLAGE_TABLE_INLINE Bytes no_bytes() { return _mm256_setzero_si256(); }
COLLAGE_TABLE_INLINE Bytes spread(uint8_t x) { return _mm256_set1_epi8(char(x)); }

// `right` where the bins are above `bin` and the position is `first`.
COLLAGE_TABLE_INLINE Bytes moved(Bytes position, Bytes bins, Bytes bin, Bytes first, Bytes right) {
  const Bytes chosen = _mm256_and_si256(_mm256_cmpgt_epi8(bins, bin), _mm256_cmpeq_epi8(position, first));
  return _mm256_blendv_epi8(position, right, chosen);
}

// Twice the position, and one more where the bins are above `bin`.
COLLAGE_TABLE_INLINE Bytes deeper(Bytes position, Bytes bins, Bytes bin) {
  return _mm256_sub_epi8(_mm256_add_epi8(position, position), _mm256_cmpgt_epi8(bins, bin));
}

COLLAGE_TABLE_INLINE Bytes sixteen_of(const uint8_t *table, Bytes places) {
  const __m128i each = _mm_loadu_si128(reinterpret_cast<const __m128i *>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(each), places);
}
COLLAGE_TABLE_INLINE Bytes pair_of(const uint8_t *table, Bytes places, Bytes bit4) {
  return _mm256_blendv_epi8(sixteen_of(table, places), sixteen_of(table + 16, places), bit4);
}

// The bytes of a table at these places, of so many: 64 at most.
COLLAGE_TABLE_INLINE Bytes looked_up(const uint8_t *table, int64_t size, Bytes places) {
  if (size <= 16) return sixteen_of(table, places);
  const Bytes bit4 = _mm256_slli_epi16(places, 3);
  const Bytes low = pair_of(table, places, bit4);
  if (size <= 32) return low;
  return _mm256_blendv_epi8(low, pair_of(table + 32, places, bit4), _mm256_slli_epi16(places, 2));
}

COLLAGE_TABLE_INLINE Bytes low_bytes(Bytes a, Bytes b) { return _mm256_unpacklo_epi8(a, b); }
COLLAGE_TABLE_INLINE Bytes high_bytes(Bytes a, Bytes b) { return _mm256_unpackhi_epi8(a, b); }
COLLAGE_TABLE_INLINE Bytes low_pairs(Bytes a, Bytes b) { return _mm256_unpacklo_epi16(a, b); }
COLLAGE_TABLE_INLINE Bytes high_pairs(Bytes a, Bytes b) { return _mm256_unpackhi_epi16(a, b); }
COLLAGE_TABLE_INLINE Bytes low_fours(Bytes a, Bytes b) { return _mm256_unpacklo_epi32(a, b); }
COLLAGE_TABLE_INLINE Bytes high_fours(Bytes a, Bytes b) { return _mm256_unpackhi_epi32(a, b); }

COLLAGE_TABLE_INLINE void add_to(float *sums, Bytes x) {
  _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_loadu_ps(sums), _mm256_castsi256_ps(x)));
}
COLLAGE_TABLE_INLINE void add_to(double *sums, Bytes x) {
  _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), _mm256_castsi256_pd(x)));
}

constexpr int64_t kMostPlanes = 64;  // leaves whose values are looked up by bytes

// How many of 16 thresholds are below x.
COLLAGE_TABLE_INLINE int below(const float *thresholds, float x) {
  const __m256 each = _mm256_set1_ps(x);
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(each, _mm256_loadu_ps(thresholds), _CMP_GT_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(each, _mm256_loadu_ps(thresholds + 8), _CMP_GT_OQ));
  return __builtin_popcount(low | high << 8);
}
COLLAGE_TABLE_INLINE int below(const double *thresholds, double x) {
  const __m256d each = _mm256_set1_pd(x);
  int found = 0;
  for (int i = 0; i < 16; i += 4)
    found |= _mm256_movemask_pd(_mm256_cmp_pd(each, _mm256_loadu_pd(thresholds + i), _CMP_GT_OQ)) << i;
  return __builtin_popcount(found);
}

COLLAGE_TABLE_INLINE __m256 eight_of(const float *table, __m256i place) {
  return _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), place);
}

// The place on a level of the search tree is doubled, and one more where x is above the threshold there: by _CMP_GT_OQ,
// or by _CMP_NLE_UQ, if NaN is above.
template <int LEVEL>
COLLAGE_TABLE_INLINE __m256 level_of(const float *search, __m256i place) {
  const float *level = search + (1 << LEVEL);
  if constexpr (LEVEL == 0) {
    return _mm256_set1_ps(*level);
  } else if constexpr (LEVEL <= 3) {
    return eight_of(level, place);
  } else if constexpr (LEVEL <= 5) {
    const __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(place, 28));
    const __m256 low = _mm256_blendv_ps(eight_of(level, place), eight_of(level + 8, place), bit3);
    if constexpr (LEVEL == 4) {
      return low;
    } else {
      const __m256 high = _mm256_blendv_ps(eight_of(level + 16, place), eight_of(level + 24, place), bit3);
      return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(place, 27)));
    }
  } else {
    return _mm256_i32gather_ps(level, place, 4);
  }
}

// With EQUAL, `equal` gets the lanes whose x is a threshold: these are all on the way.
template <int LEVELS, int HOW, bool EQUAL, int LEVEL = 0>
COLLAGE_TABLE_INLINE __m256i searched(const float *search, __m256 x, __m256i place, __m256 &equal) {
  if constexpr (LEVEL == LEVELS) {
    return place;
  } else {
    const __m256 threshold = level_of<LEVEL>(search, place);
    const __m256 above = _mm256_cmp_ps(x, threshold, HOW);
    if constexpr (EQUAL) equal = _mm256_or_ps(equal, _mm256_cmp_ps(x, threshold, _CMP_EQ_OQ));
    const __m256i next = _mm256_sub_epi32(_mm256_add_epi32(place, place), _mm256_castps_si256(above));
    return searched<LEVELS, HOW, EQUAL, LEVEL + 1>(search, x, next, equal);
  }
}

template <int LEVELS, int HOW>
COLLAGE_TABLE_INLINE void sixteen_bins(const float *search, const float *, const float *x, int8_t *bins) {
  __m256 equal;
  const __m256i low = searched<LEVELS, HOW, false>(search, _mm256_loadu_ps(x), _mm256_setzero_si256(), equal);
  const __m256i high = searched<LEVELS, HOW, false>(search, _mm256_loadu_ps(x + 8), _mm256_setzero_si256(), equal);
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
  const __m128i narrow = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(bins), _mm_xor_si128(narrow, _mm_set1_epi8(-128)));
}

// The next lower floats.
COLLAGE_TABLE_INLINE __m128 rounded_down(__m256d x) {
  const __m128 nearest = _mm256_cvtpd_ps(x);
  const __m256d above = _mm256_cmp_pd(_mm256_cvtps_pd(nearest), x, _CMP_GT_OQ);
  const __m256i narrow = _mm256_permutevar8x32_epi32(_mm256_castpd_si256(above), _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0));
  // One less as an integer is closer to 0, and one more of a negative number is further from it; 0 becomes the least
  // one.
  const __m128i bits = _mm_castps_si128(nearest), sign = _mm_srai_epi32(bits, 31);
  const __m128i step = _mm_or_si128(_mm_set1_epi32(1), _mm_slli_epi32(_mm_andnot_si128(sign, _mm_set1_epi32(-1)), 1));
  const __m128i zero = _mm_cmpeq_epi32(_mm_slli_epi32(bits, 1), _mm_setzero_si128());
  const __m128i next = _mm_blendv_epi8(_mm_add_epi32(bits, step), _mm_set1_epi32(int(0x80000001u)), zero);
  return _mm_castsi128_ps(_mm_blendv_epi8(bits, next, _mm256_castsi256_si128(narrow)));
}

// Of doubles, first the bins of the next lower floats among the next lower floats of thresholds, and then what follows
// from the doubles if these are the same.
template <int LEVELS, int HOW>
COLLAGE_TABLE_INLINE void sixteen_bins(const float *search, const double *sorted, const double *x, int8_t *bins) {
  for (int i = 0; i < 16; i += 8) {
    const __m256d low = _mm256_loadu_pd(x + i), high = _mm256_loadu_pd(x + i + 4);
    const __m256 narrow = _mm256_set_m128(rounded_down(high), rounded_down(low));
    __m256 equal = _mm256_setzero_ps();
    __m256i places = searched<LEVELS, HOW, true>(search, narrow, _mm256_setzero_si256(), equal);
    bool again = _mm256_movemask_ps(equal) != 0;
    while (again) {
      const __m256d of_low = _mm256_i32gather_pd(sorted, _mm256_castsi256_si128(places), 8);
      const __m256d of_high = _mm256_i32gather_pd(sorted, _mm256_extracti128_si256(places, 1), 8);
      const int above = _mm256_movemask_pd(_mm256_cmp_pd(of_low, low, _CMP_LT_OQ)) |
                        _mm256_movemask_pd(_mm256_cmp_pd(of_high, high, _CMP_LT_OQ)) << 4;
      again = above != 0;
      const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
      const __m256i chosen = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(above), bit), bit);
      places = _mm256_sub_epi32(places, chosen);
    }
    alignas(32) int32_t found[8];
    _mm256_store_si256(reinterpret_cast<__m256i *>(found), places);
    for (int k = 0; k < 8; ++k) bins[i + k] = int8_t(found[k] - 128);
  }
}

// Rows of 8 floats as columns.
COLLAGE_TABLE_INLINE void transpose_floats(const float *from, int64_t stride, float *const *to, int64_t row) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(from + i * stride);
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to[i] + row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(to[i + 4] + row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}

// Rows of 4 doubles as columns.
COLLAGE_TABLE_INLINE void transpose_doubles(const double *from, int64_t stride, double *const *to, int64_t row) {
  __m256d a[4], b[4];
  for (int i = 0; i < 4; ++i) a[i] = _mm256_loadu_pd(from + i * stride);
  for (int i = 0; i < 4; i += 2) {
    b[i] = _mm256_unpacklo_pd(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_pd(a[i], a[i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    _mm256_storeu_pd(to[i] + row, _mm256_permute2f128_pd(b[i], b[i + 2], 0x20));
    _mm256_storeu_pd(to[i + 2] + row, _mm256_permute2f128_pd(b[i], b[i + 2], 0x31));
  }
}

constexpr int64_t kDoubles = 4;  // rows and columns of that
constexpr int64_t kTranspose = 8;  // rows and columns of that

}  // namespace collage
