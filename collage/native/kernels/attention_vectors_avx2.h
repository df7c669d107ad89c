// Vectors of 16 numbers in attention, in two registers of AVX2. To be included by attention_cells.h alone, whose other form
// is attention_vectors.h.

#include "epilogue.h"

namespace {

using Vector = collage::Floats;
using collage::kLanes;

// Rows that are multiplied at a time, and vectors of keys and of a row's values: as many sums as there are registers for.
constexpr int kTile = 6;
template <int R>
constexpr int kKeyVectors = R <= 2 ? 2 : 1;
template <int R>
constexpr int kValueVectors = R == 1 ? 4 : R == 2 ? 2 : 1;

INLINE Vector filled(float x) { return collage::broadcast(x); }
INLINE Vector operator*(float x, const Vector &y) { return filled(x) * y; }
INLINE Vector operator*(const Vector &x, float y) { return x * filled(y); }
INLINE Vector &operator*=(Vector &x, float y) { return x = x * filled(y); }
INLINE Vector &operator-=(Vector &x, float y) { return x = x - filled(y); }

INLINE __m256i eight_integers(const uint16_t *from) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}
INLINE __m256 eight_numbers(const int8_t *from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from))));
}

// The cells of a cache are floats, the upper halves of floats, or multiples of a scale that the cells of a token and head
// share.
INLINE void load(Vector &to, const float *from) { to = collage::load(from); }
INLINE void load(Vector &to, const uint16_t *from) {
  to.low = _mm256_castsi256_ps(_mm256_slli_epi32(eight_integers(from), 16));
  to.high = _mm256_castsi256_ps(_mm256_slli_epi32(eight_integers(from + 8), 16));
}
INLINE void load(Vector &to, const int8_t *from) { to = {eight_numbers(from), eight_numbers(from + 8)}; }

// Two vectors of cells that follow each other.
template <typename Cell>
INLINE void load_pair(Vector &first, Vector &second, const Cell *from) {
  load(first, from);
  load(second, from + kLanes);
}
// Cells are always in order here.
template <typename Cell>
INLINE void in_order(Vector &, Vector &) {}
template <typename Cell>
INLINE void as_pairs(Vector &, Vector &) {}

// x, x + 1, ..., x + 15
INLINE Vector numbered(float x) {
  const Vector lane = {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
  return lane + filled(x);
}

// The larger of each lane's two, and x where the lane is below `end`, else y.
INLINE Vector larger(const Vector &x, const Vector &y) { return collage::max(x, y); }
INLINE Vector below(int64_t end, const Vector &x, const Vector &y) {
  return collage::choose(collage::less(numbered(0.0f), filled(float(end))), x, y);
}

INLINE float sum(const Vector &x) {
  const __m256 eight = x.low + x.high;
  const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
  return (four[0] + four[1]) + (four[2] + four[3]);
}

INLINE float largest(const Vector &x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  return std::max(std::max(four[0], four[1]), std::max(four[2], four[3]));
}

}  // namespace
