// Vectors of 16 numbers in attention: the compiler's. To be included by attention_cells.h alone, whose other form is
// attention_vectors_avx2.h.

namespace {

typedef float Vector __attribute__((vector_size(64)));
typedef int32_t Integers __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef int8_t Bytes __attribute__((vector_size(16)));

using collage_attention::kLanes;

// Rows that are multiplied at a time, and vectors of keys and of a row's values: as many sums as there are registers for.
constexpr int kTile = 8;
template <int R>
constexpr int kKeyVectors = 2;
template <int R>
constexpr int kValueVectors = R <= 4 ? 4 : 2;  // so that memory is read in order where it sets the pace

INLINE Vector filled(float x) { return Vector{} + x; }

// The cells of a cache are floats, the upper halves of floats, or multiples of a scale that the cells of a token and head
// share.
INLINE void load(Vector &to, const float *from) { memcpy(&to, from, sizeof to); }
INLINE void load(Vector &to, const uint16_t *from) {
  Halves halves;
  memcpy(&halves, from, sizeof halves);
  to = (Vector)(__builtin_convertvector(halves, Integers) << 16);
}
INLINE void load(Vector &to, const int8_t *from) {
  Bytes bytes;
  memcpy(&bytes, from, sizeof bytes);
  to = __builtin_convertvector(__builtin_convertvector(bytes, Integers), Vector);
}

// Two vectors of cells that follow each other. Those of bfloat16 are not in order: the first vector has the even ones, the
// second the odd ones, which takes fewer instructions.
template <typename Cell>
INLINE void load_pair(Vector &first, Vector &second, const Cell *from) {
  load(first, from);
  load(second, from + kLanes);
}
INLINE void load_pair(Vector &first, Vector &second, const uint16_t *from) {
  Integers pairs;
  memcpy(&pairs, from, sizeof pairs);
  first = (Vector)(pairs << 16);
  second = (Vector)(pairs & int32_t(0xffff0000u));
}

// Two vectors in the order of such pairs put in that of numbers, and back.
template <typename Cell>
INLINE void in_order(Vector &first, Vector &second) {
  if constexpr (std::is_same_v<Cell, uint16_t>) {
    const Vector begin =
        __builtin_shufflevector(first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const Vector end =
        __builtin_shufflevector(first, second, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    first = begin;
    second = end;
  }
}
template <typename Cell>
INLINE void as_pairs(Vector &first, Vector &second) {
  if constexpr (std::is_same_v<Cell, uint16_t>) {
    const Vector evens =
        __builtin_shufflevector(first, second, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const Vector odds =
        __builtin_shufflevector(first, second, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    first = evens;
    second = odds;
  }
}

INLINE void store(float *to, const Vector &from) { memcpy(to, &from, sizeof from); }

// The larger of each lane's two, and x where the lane is below `end`, else y.
INLINE Vector larger(const Vector &x, const Vector &y) { return x > y ? x : y; }
INLINE Vector below(int64_t end, const Vector &x, const Vector &y) {
  const Integers lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < int32_t(end) ? x : y;
}

// e^x for x <= 0, and 0 below e^-80. NaN stays NaN.
INLINE Vector exponential(const Vector &x) {
  const Integers small = x < -80.0f;
  const Vector bounded = small ? Vector{} - 80.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vector n = (bounded * 1.44269504089f + magic) - magic;
  const Vector r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
  const Vector found = p * (Vector)power;  // a cast of the bits
  return small ? Vector{} : found;
}

// By e^-2|x|, with a polynomial near 0, where that would cancel.
INLINE Vector tangent(const Vector &x) {
  const Vector size = x < 0.0f ? -x : x, square = x * x;
  const Vector e = exponential(size * -2.0f);
  const Vector far = (1.0f - e) / (1.0f + e);
  Vector p = square * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const Vector near = x * square * p + x;
  return size < 0.625f ? near : x < 0.0f ? -far : far;
}

// x, x + 1, ..., x + 15
INLINE Vector numbered(float x) {
  const Vector lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane + x;
}

// A vector in four parts, so that its lanes can be joined in few steps.
typedef float Quarter __attribute__((vector_size(16)));
struct Quarters {
  Quarter part[4];
};

INLINE void split(const Vector &x, Quarters &to) { memcpy(&to, &x, sizeof(x)); }

INLINE float sum(const Vector &x) {
  Quarters q;
  split(x, q);
  const Quarter four = (q.part[0] + q.part[1]) + (q.part[2] + q.part[3]);
  return (four[0] + four[1]) + (four[2] + four[3]);
}

INLINE float largest(const Vector &x) {
  Quarters q;
  split(x, q);
  const Quarter a = q.part[0] > q.part[1] ? q.part[0] : q.part[1], b = q.part[2] > q.part[3] ? q.part[2] : q.part[3];
  const Quarter four = a > b ? a : b;
  return std::max(std::max(four[0], four[1]), std::max(four[2], four[3]));
}

}  // namespace
