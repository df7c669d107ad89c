// Steps of a table program on a block of rows whose values are columns. To be included by table.cpp alone.

#ifndef COLLAGE_NATIVE_KERNELS_TABLE_STEPS_H
#define COLLAGE_NATIVE_KERNELS_TABLE_STEPS_H

#include <math.h>
#include <string.h>

#include <algorithm>
#include <limits>

#include "table_trees.h"

// Vectors are handed to functions of this file alone, which are inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace collage {

using Step = collage_table_step;

// A block of rows: the workspace, the rows that it has room for and those that there are, and the first one's number.
// The same thread's next block begins `ahead` rows further, if that is not behind the `last` row.
struct Block {
  char *workspace;
  int64_t room, rows, first, ahead, last;

  template <typename T>
  T *column(int64_t offset) const {
    return reinterpret_cast<T *>(workspace + offset * room);
  }
};

template <typename Do>
void with_type(int32_t type, const Do &act) {
  switch (type) {
    case COLLAGE_F32: return act(float());
    case COLLAGE_F64: return act(double());
    default: return act(int64_t());
  }
}

template <typename T>
COLLAGE_TABLE_INLINE bool is_nan(T x) {
  if constexpr (std::numeric_limits<T>::is_integer) return false;
  return std::isnan(double(x));
}

// Conversions of numbers that the other type cannot hold give its least number, as the processor's do.
template <typename To, typename From>
To converted(From x) {
  if constexpr (std::numeric_limits<To>::is_integer && !std::numeric_limits<From>::is_integer) {
    constexpr From kLimit = From(9223372036854775808.0);
    if (!(x >= -kLimit && x < kLimit)) return std::numeric_limits<To>::min();
  }
  return To(x);
}

template <typename From, typename To>
void load_columns(const Step &s, const Block &b, const From *input) {
  const int64_t stride = s.sizes[1];
  const From *from = input + b.first * stride;
  if (b.rows == 1) {
    for (int32_t i = 0; i < s.outs; ++i) *b.column<To>(s.out[i]) = converted<To>(from[s.in[i]]);
    return;
  }
  // The first block is not yet in the cache, and its rows are behind each other, in another order than columns are.
  if (b.first < b.ahead && s.in[0] < kTranspose && s.outs * 4 >= stride) {
    const char *const bytes = reinterpret_cast<const char *>(from);
    const int64_t size = b.rows * stride * int64_t(sizeof(From));
    for (int64_t at = 0; at < size; at += 64) _mm_prefetch(bytes + at, _MM_HINT_T1);
  }
  int32_t i = 0;
  while (i < s.outs) {
    const int32_t begin = int32_t(std::max<int64_t>(0, std::min<int64_t>(s.in[i], stride - kTranspose)));
    int32_t end = i + 1;  // columns near each other, in order
    while (end < s.outs && s.in[end] > s.in[end - 1] && s.in[end] < begin + kTranspose) ++end;
    int64_t row = 0;
    if constexpr (std::is_same_v<From, To> && std::is_floating_point_v<From>) {
      constexpr int64_t kEach = sizeof(From) == 4 ? kTranspose : kDoubles;
      if (stride >= kTranspose && end - i >= kTranspose / 4) {
        From unused[COLLAGE_TABLE_BLOCK], *to[kTranspose];
        for (From *&each : to) each = unused;
        for (int32_t k = i; k < end; ++k) to[s.in[k] - begin] = b.column<From>(s.out[k]);
        for (; row + kEach <= b.rows; row += kEach) {
          const From *const corner = from + row * stride + begin;
          if (b.first + row + b.ahead + kEach <= b.last)
            for (int64_t k = 0; k < kEach; ++k) _mm_prefetch(corner + (b.ahead + k) * stride, _MM_HINT_T1);
          if constexpr (sizeof(From) == 4) {
            transpose_floats(corner, stride, to, row);
          } else {
            for (int64_t k = 0; k < kTranspose; k += kEach) transpose_doubles(corner + k, stride, to + k, row);
          }
        }
      }
    }
    for (; row < b.rows; ++row)
      for (int32_t k = i; k < end; ++k) b.column<To>(s.out[k])[row] = converted<To>(from[row * stride + s.in[k]]);
    i = end;
  }
}

inline void load_step(const Step &s, const Block &b, const void *input) {
  with_type(s.kinds[1], [&](auto to) {
    using To = decltype(to);
    switch (s.kinds[0]) {
      case COLLAGE_F32: return load_columns<float, To>(s, b, static_cast<const float *>(input));
      case COLLAGE_F64: return load_columns<double, To>(s, b, static_cast<const double *>(input));
      case COLLAGE_I32: return load_columns<int32_t, To>(s, b, static_cast<const int32_t *>(input));
      case COLLAGE_U8: return load_columns<uint8_t, To>(s, b, static_cast<const uint8_t *>(input));
      default: return load_columns<int64_t, To>(s, b, static_cast<const int64_t *>(input));
    }
  });
}

template <typename From, typename To>
void store_columns(const Step &s, const Block &b, To *output) {
  To *const to = output + b.first * s.sizes[1];
  for (int32_t i = 0; i < s.ins; ++i) {
    const From *from = b.column<From>(s.in[i]);
    for (int64_t row = 0; row < b.rows; ++row) to[row * s.sizes[1] + i] = To(from[row]);
  }
}

inline void store_step(const Step &s, const Block &b, void *output) {
  with_type(s.kinds[0], [&](auto from) {
    using From = decltype(from);
    if (s.kinds[1] == COLLAGE_U8) return store_columns<From>(s, b, static_cast<uint8_t *>(output));
    if (s.kinds[1] == COLLAGE_I32) return store_columns<From>(s, b, static_cast<int32_t *>(output));
    store_columns<From>(s, b, static_cast<From *>(output));
  });
}

// Each of the columns with f(x).
template <typename From, typename To, typename F>
COLLAGE_TABLE_INLINE void each_of(const Step &s, const Block &b, const F &f) {
  for (int32_t i = 0; i < s.ins; ++i) {
    const From *from = b.column<From>(s.in[i]);
    To *to = b.column<To>(s.out[i]);
    for (int64_t row = 0, rows = b.rows; row < rows; ++row) to[row] = To(f(from[row], i));
  }
}

inline void convert_step(const Step &s, const Block &b) {
  with_type(s.kinds[0], [&](auto from) {
    with_type(s.kinds[1], [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      each_of<From, To>(s, b, [](From x, int) { return converted<To>(x); });
    });
  });
}

template <typename T, int LEVELS>
void block_bins(const float *search, const T *sorted, const T *x, int8_t *bins, int64_t rows, bool high) {
  if (high) {
    for (int64_t row = 0; row < rows; row += 16) sixteen_bins<LEVELS, _CMP_NLE_UQ>(search, sorted, x + row, bins + row);
  } else {
    for (int64_t row = 0; row < rows; row += 16) sixteen_bins<LEVELS, _CMP_GT_OQ>(search, sorted, x + row, bins + row);
  }
}

template <typename T>
void row_bins(const Step &s, const Block &b, const collage_table_bins &t) {
  constexpr int64_t kChunk = COLLAGE_TABLE_CHUNK;
  // Bytes may be anything to the compiler: what is read again after each store has to be in variables.
  const T *const sorted = static_cast<const T *>(t.sorted), *const last = static_cast<const T *>(t.last);
  const int32_t *const in = s.in, *const levels = t.levels, *const high = t.high;
  const int64_t *const begin = t.begin, count = s.ins;
  const char *const workspace = b.workspace;
  int8_t *const bins = b.column<int8_t>(s.out[0]);
  for (int64_t i = 0; i < count; ++i) {
    const T x = *reinterpret_cast<const T *>(workspace + in[i]);
    const int64_t chunk = levels[i] <= 4 ? 0 : kChunk * below(last + i * kChunk, x);
    const int64_t bin = chunk + below(sorted + begin[i] + chunk, x) - 128;
    bins[i] = int8_t(high[i] && is_nan(x) ? 127 : bin);
  }
}

template <typename T>
void bins_step(const Step &s, const Block &b) {
  const auto &t = *static_cast<const collage_table_bins *>(s.data[0]);
  if (b.room == 1) return row_bins<T>(s, b, t);
  for (int32_t i = 0; i < s.ins; ++i) {
    const T *const x = b.column<T>(s.in[i]), *const sorted = static_cast<const T *>(t.sorted) + t.begin[i];
    const float *const tree = t.search + t.begin[i];
    int8_t *const bins = b.column<int8_t>(s.out[0] + i);
    const bool high = t.high[i];
    switch (t.levels[i]) {
      case 1: block_bins<T, 1>(tree, sorted, x, bins, b.rows, high); break;
      case 2: block_bins<T, 2>(tree, sorted, x, bins, b.rows, high); break;
      case 3: block_bins<T, 3>(tree, sorted, x, bins, b.rows, high); break;
      case 4: block_bins<T, 4>(tree, sorted, x, bins, b.rows, high); break;
      case 5: block_bins<T, 5>(tree, sorted, x, bins, b.rows, high); break;
      case 6: block_bins<T, 6>(tree, sorted, x, bins, b.rows, high); break;
      case 7: block_bins<T, 7>(tree, sorted, x, bins, b.rows, high); break;
      default: block_bins<T, 8>(tree, sorted, x, bins, b.rows, high); break;
    }
  }
}

// `scratch` is aligned, and has room for the sums of a block and the addresses of the columns.
template <typename T, typename X>
void trees_step(const Step &s, const Block &b, const void *const *inputs, char *scratch) {
  const auto &t = *static_cast<const collage_table_trees *>(s.data[0]);
  const int8_t *const bins = b.column<int8_t>(t.bins);
  const X **const columns = reinterpret_cast<const X **>(scratch);
  char *const rest = scratch + (s.ins * int64_t(sizeof(void *)) + 63) / 64 * 64;
  T *const sums = reinterpret_cast<T *>(rest);
  if (b.room == 1) {
    for (int32_t i = 0; i < s.outs; ++i) sums[i] = 0;
    auto *const places = reinterpret_cast<uint32_t *>(rest + (s.outs * int64_t(sizeof(T)) + 63) / 64 * 64);
    if (t.direct != nullptr) {
      const X *const row = static_cast<const X *>(inputs[t.input]) + b.first * t.width;
      const auto number = [&](uint32_t column) {
        const int32_t element = t.direct[column];
        const X x = row[element < 0 ? ~element : element];
        return element < 0 && is_nan(x) ? std::numeric_limits<X>::infinity() : x;
      };
      single<T, X>(t, bins, number, sums, places);
    } else {
      single<T, X>(t, bins, [&](uint32_t column) { return *b.column<X>(s.in[column]); }, sums, places);
    }
    for (int32_t i = 0; i < s.outs; ++i) *b.column<T>(s.out[i]) = sums[i];
    return;
  }
  for (int32_t i = 0; i < s.ins; ++i) columns[i] = b.column<X>(s.in[i]);
  constexpr int64_t kAll = COLLAGE_TABLE_BLOCK;
  memset(sums, 0, s.outs * kAll * sizeof(T));
  const int64_t rows = (b.rows + kRows - 1) / kRows * kRows;
  for (int64_t i = 0; i < t.runs; ++i) {
    const collage_table_run &run = t.run[i];
    if (run.kind != COLLAGE_WALKED) {
      visited(t, run, bins, sums, rows);
    } else {
      for (int64_t tree = run.first; tree < run.end; ++tree) walked(t, t.tree[tree], columns, sums, b.rows);
    }
  }
  for (int32_t i = 0; i < s.outs; ++i) {
    T *const to = b.column<T>(s.out[i]);
    for (int64_t row = 0; row < b.rows; ++row) to[row] = sums[i * kAll + place_of_sum<T>(row)];
  }
}

inline void trees_step(const Step &s, const Block &b, const void *const *inputs, char *scratch) {
  const bool wide_sums = s.kinds[1] == COLLAGE_F64;
  if (s.kinds[0] == COLLAGE_F64)
    return wide_sums ? trees_step<double, double>(s, b, inputs, scratch) : trees_step<float, double>(s, b, inputs, scratch);
  wide_sums ? trees_step<double, float>(s, b, inputs, scratch) : trees_step<float, float>(s, b, inputs, scratch);
}

template <typename T>
int64_t place_among(const T *sorted, int64_t count, T x) {  // -1: it is not there
  const T *const found = std::lower_bound(sorted, sorted + count, x);
  return found != sorted + count && *found == x ? found - sorted : -1;
}

inline void member_step(const Step &s, const Block &b) {
  with_type(s.kinds[0], [&](auto type) {
    using T = decltype(type);
    const T *const sorted = static_cast<const T *>(s.data[0]);
    const bool nan = s.sizes[1] != 0;
    if (const int64_t limit = s.sizes[2]) {
      const uint64_t *const bits = static_cast<const uint64_t *>(s.data[1]);
      return each_of<T, T>(s, b, [=](T x, int) {
        const int64_t i = x >= 0 && x < T(limit) ? int64_t(x) : 0;
        return T(i) == x ? bits[i / 64] >> (i % 64) & 1 : nan && is_nan(x);
      });
    }
    each_of<T, T>(s, b, [&](T x, int) {
      return is_nan(x) ? s.sizes[1] != 0 : place_among(sorted, s.sizes[0], x) >= 0;
    });
  });
}

constexpr int kWide = kRows / 8;  // doubles of a register
using Doubles [[gnu::vector_size(kRows)]] = double;
using Longs [[gnu::vector_size(kRows)]] = int64_t;

// e^x: 2^n times the series of the rest, which errs by less than 1e-15 of the result. Results below 1e-307 are 0.
COLLAGE_TABLE_INLINE Doubles exponential(Doubles x) {
  const Doubles zeros = {}, shift = zeros + 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to whole numbers
  const Doubles least = zeros - 708.0, most = zeros + 709.0;
  const Doubles within = x < least ? least : x > most ? most : x;
  const Doubles shifted = within * 1.4426950408889634 + shift, n = shifted - shift;
  const Doubles r = (within - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
  Doubles sum = zeros + 1.6059043836821613e-10;  // 1/13!, and so on
  sum = sum * r + 2.08767569878681e-09;
  sum = sum * r + 2.505210838544172e-08;
  sum = sum * r + 2.755731922398589e-07;
  sum = sum * r + 2.7557319223985893e-06;
  sum = sum * r + 2.48015873015873e-05;
  sum = sum * r + 0.0001984126984126984;
  sum = sum * r + 0.001388888888888889;
  sum = sum * r + 0.008333333333333333;
  sum = sum * r + 0.041666666666666664;
  sum = sum * r + 0.16666666666666666;
  sum = sum * r + 0.5;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  const Longs power = (reinterpret_cast<Longs>(shifted) << 52) + (int64_t(1023) << 52);
  const Doubles found = sum * reinterpret_cast<Doubles>(power);
  const Doubles low = x < least ? zeros : found, both = x > most ? zeros + std::numeric_limits<double>::infinity() : low;
  return x == x ? both : x;
}

// f of each number, of doubles by the register.
template <typename T, typename F>
COLLAGE_TABLE_INLINE void widely(const T *from, T *to, int64_t rows, const F &f) {
  using Part [[gnu::vector_size(sizeof(T) * kWide)]] = T;
  int64_t row = 0;
  for (; row + kWide <= rows; row += kWide) {
    Part part;
    memcpy(&part, from + row, sizeof part);
    part = __builtin_convertvector(f(__builtin_convertvector(part, Doubles)), Part);
    memcpy(to + row, &part, sizeof part);
  }
  if (row == rows) return;
  Part part = {};
  for (int64_t i = 0; row + i < rows; ++i) part[i] = from[row + i];
  part = __builtin_convertvector(f(__builtin_convertvector(part, Doubles)), Part);
  for (int64_t i = 0; row + i < rows; ++i) to[row + i] = part[i];
}

template <typename T, typename F>
COLLAGE_TABLE_INLINE void each_widely(const Step &s, const Block &b, const F &f) {
  for (int32_t i = 0; i < s.ins; ++i) widely(b.column<T>(s.in[i]), b.column<T>(s.out[i]), b.rows, f);
}

COLLAGE_TABLE_INLINE Doubles logistic(Doubles x) {
  const Doubles zeros = {}, v = 1.0 / (1.0 + exponential(x < zeros ? x : -x));
  return x < zeros ? 1.0 - v : v;
}

// The inverse of the error function by Winitzki's approximation, as ONNX Runtime has it: of the same constants.
inline float probit(float x) {
  const float y = 2 * x - 1, sign = y < 0 ? -1.0f : 1.0f;
  const float log = std::log((1 - y) * (1 + y));
  const float v = 2 / (3.14159f * 0.147f) + 0.5f * log, w = 1 / 0.147f * log;
  return 1.41421356f * (sign * std::sqrt(-v + std::sqrt(v * v - w)));
}

template <typename T>
void unary_step(const Step &s, const Block &b) {
  switch (s.kinds[1]) {
    case COLLAGE_LOGISTIC: return each_widely<T>(s, b, [](Doubles x) { return logistic(x); });
    case COLLAGE_PROBIT: return each_of<T, T>(s, b, [](T x, int) { return probit(float(x)); });
    case COLLAGE_NEGATIVE: return each_of<T, T>(s, b, [](T x, int) { return -x; });
    case COLLAGE_ABSOLUTE: return each_of<T, T>(s, b, [](T x, int) { return std::abs(x); });
    case COLLAGE_EXP: return each_widely<T>(s, b, [](Doubles x) { return exponential(x); });
    case COLLAGE_LOG: return each_of<T, T>(s, b, [](T x, int) { return std::log(x); });
    case COLLAGE_SQRT: return each_of<T, T>(s, b, [](T x, int) { return std::sqrt(x); });
    case COLLAGE_TANH: return each_of<T, T>(s, b, [](T x, int) { return std::tanh(x); });
    case COLLAGE_FLOOR: return each_of<T, T>(s, b, [](T x, int) { return std::floor(x); });
    case COLLAGE_CEIL: return each_of<T, T>(s, b, [](T x, int) { return std::ceil(x); });
    case COLLAGE_IS_NAN: return each_of<T, int64_t>(s, b, [](T x, int) { return is_nan(x); });
    case COLLAGE_NOT: return each_of<T, int64_t>(s, b, [](T x, int) { return x == 0; });
    case COLLAGE_NAN_HIGH:
      return each_of<T, T>(s, b, [](T x, int) { return is_nan(x) ? std::numeric_limits<T>::infinity() : x; });
  }
}

// Each row with f(x, y), of two columns, or of a column and a number.
template <typename T, typename To, typename F>
COLLAGE_TABLE_INLINE void both_of(const Step &s, const Block &b, const F &f) {
  if (s.op == COLLAGE_TABLE_CONSTANT) {
    const T *const numbers = static_cast<const T *>(s.data[0]);
    return each_of<T, To>(s, b, [&](T x, int i) { return f(x, numbers[i]); });
  }
  for (int32_t i = 0; i < s.outs; ++i) {
    const T *x = b.column<T>(s.in[i]), *y = b.column<T>(s.in[s.outs + i]);
    To *to = b.column<To>(s.out[i]);
    for (int64_t row = 0; row < b.rows; ++row) to[row] = To(f(x[row], y[row]));
  }
}

// Sums and products of integers wrap around.
template <typename T, typename F>
COLLAGE_TABLE_INLINE T wrapped(T x, T y, const F &f) {
  if constexpr (std::numeric_limits<T>::is_integer) return T(f(uint64_t(x), uint64_t(y)));
  return T(f(x, y));
}

template <typename T>
T quotient(T x, T y) {
  if constexpr (std::numeric_limits<T>::is_integer) {
    if (y == 0) return 0;
    if (y == -1) return T(0 - uint64_t(x));
  }
  return x / y;
}

template <typename T>
void binary_step(const Step &s, const Block &b) {
  switch (s.kinds[1]) {
    case COLLAGE_ADD:
      return both_of<T, T>(s, b, [](T x, T y) { return wrapped(x, y, [](auto p, auto q) { return p + q; }); });
    case COLLAGE_SUBTRACT:
      return both_of<T, T>(s, b, [](T x, T y) { return wrapped(x, y, [](auto p, auto q) { return p - q; }); });
    case COLLAGE_MULTIPLY:
      return both_of<T, T>(s, b, [](T x, T y) { return wrapped(x, y, [](auto p, auto q) { return p * q; }); });
    case COLLAGE_DIVIDE: return both_of<T, T>(s, b, [](T x, T y) { return quotient(x, y); });
    case COLLAGE_MINIMUM: return both_of<T, T>(s, b, [](T x, T y) { return is_nan(x) || x < y ? x : y; });
    case COLLAGE_MAXIMUM: return both_of<T, T>(s, b, [](T x, T y) { return is_nan(x) || x > y ? x : y; });
    case COLLAGE_EQUAL: return both_of<T, int64_t>(s, b, [](T x, T y) { return x == y; });
    case COLLAGE_GREATER: return both_of<T, int64_t>(s, b, [](T x, T y) { return x > y; });
    case COLLAGE_GREATER_EQUAL: return both_of<T, int64_t>(s, b, [](T x, T y) { return x >= y; });
    case COLLAGE_LESS: return both_of<T, int64_t>(s, b, [](T x, T y) { return x < y; });
    case COLLAGE_LESS_EQUAL: return both_of<T, int64_t>(s, b, [](T x, T y) { return x <= y; });
    case COLLAGE_AND: return both_of<T, int64_t>(s, b, [](T x, T y) { return x != 0 && y != 0; });
    case COLLAGE_OR: return both_of<T, int64_t>(s, b, [](T x, T y) { return x != 0 || y != 0; });
    case COLLAGE_POWER: return both_of<T, T>(s, b, [](T x, T y) { return T(std::pow(x, y)); });
    case COLLAGE_IMPUTE: return both_of<T, T>(s, b, [](T x, T y) { return is_nan(x) ? y : x; });
    case COLLAGE_DIVIDED_BY: return both_of<T, T>(s, b, [](T x, T y) { return quotient(y, x); });
    case COLLAGE_TO_THE_POWER: return both_of<T, T>(s, b, [](T x, T y) { return T(std::pow(y, x)); });
    case COLLAGE_CONSTANT_OF: return both_of<T, T>(s, b, [](T, T y) { return y; });
  }
}

inline void map_step(const Step &s, const Block &b) {
  with_type(s.kinds[0], [&](auto from) {
    with_type(s.kinds[1], [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      const From *const keys = static_cast<const From *>(s.data[0]);
      const To *const values = static_cast<const To *>(s.data[1]);
      each_of<From, To>(s, b, [&](From x, int) {
        if (is_nan(x)) return values[s.sizes[1]];
        const int64_t place = place_among(keys, s.sizes[0], x);
        return values[place < 0 ? s.sizes[0] : place];
      });
    });
  });
}

// Rows over a number of each row that `gather` finds from its numbers.
template <typename T>
void normalize_step(const Step &s, const Block &b) {
  for (int64_t row = 0; row < b.rows; ++row) {
    T by = s.kinds[1] == COLLAGE_BY_MAXIMUM ? std::numeric_limits<T>::lowest() : T(0);
    for (int32_t i = 0; i < s.ins; ++i) {
      const T x = b.column<T>(s.in[i])[row];
      if (s.kinds[1] == COLLAGE_BY_MAXIMUM) by = std::max(by, x);
      if (s.kinds[1] == COLLAGE_BY_SUM) by += std::abs(x);
      if (s.kinds[1] == COLLAGE_BY_NORM) by += x * x;
    }
    if (s.kinds[1] == COLLAGE_BY_NORM) by = std::sqrt(by);
    for (int32_t i = 0; i < s.ins; ++i) {
      const T x = b.column<T>(s.in[i])[row];
      b.column<T>(s.out[i])[row] = by != 0 ? x / by : x;
    }
  }
}

template <typename T>
void linear_step(const Step &s, const Block &b) {
  const T *weight = static_cast<const T *>(s.data[0]), *bias = static_cast<const T *>(s.data[1]);
  for (int32_t out = 0; out < s.outs; ++out, weight += s.ins) {
    T sums[COLLAGE_TABLE_BLOCK];
    for (int64_t row = 0; row < b.rows; ++row) sums[row] = 0;
    for (int32_t i = 0; i < s.ins; ++i) {
      const T *const x = b.column<T>(s.in[i]);
      const T by = weight[i];
      for (int64_t row = 0; row < b.rows; ++row) sums[row] += x[row] * by;
    }
    T *const to = b.column<T>(s.out[out]);
    for (int64_t row = 0; row < b.rows; ++row) to[row] = sums[row] + bias[out];
  }
}

template <typename T>
void vectors_step(const Step &s, const Block &b) {
  const T *vector = static_cast<const T *>(s.data[0]), *number = static_cast<const T *>(s.data[1]);
  const T gamma = number[0], coef0 = number[1], degree = number[2];
  for (int32_t out = 0; out < s.outs; ++out, vector += s.ins) {
    T sums[COLLAGE_TABLE_BLOCK];
    for (int64_t row = 0; row < b.rows; ++row) sums[row] = 0;
    const bool radial = s.kinds[1] == COLLAGE_RADIAL;
    for (int32_t i = 0; i < s.ins; ++i) {
      const T *const x = b.column<T>(s.in[i]);
      const T by = vector[i];
      for (int64_t row = 0; row < b.rows; ++row) sums[row] += radial ? (x[row] - by) * (x[row] - by) : x[row] * by;
    }
    T *const to = b.column<T>(s.out[out]);
    for (int64_t row = 0; row < b.rows; ++row) {
      switch (s.kinds[1]) {
        case COLLAGE_DOT: to[row] = sums[row]; break;
        case COLLAGE_POLYNOMIAL: to[row] = std::pow(gamma * sums[row] + coef0, degree); break;
        case COLLAGE_RADIAL: to[row] = std::exp(-gamma * sums[row]); break;
        case COLLAGE_SIGMOID: to[row] = std::tanh(gamma * sums[row] + coef0); break;
      }
    }
  }
}

template <typename T>
void reduce_step(const Step &s, const Block &b) {
  T *const to = b.column<T>(s.out[0]);
  for (int64_t row = 0; row < b.rows; ++row) {
    T found = b.column<T>(s.in[0])[row];
    for (int32_t i = 1; i < s.ins; ++i) {
      const T x = b.column<T>(s.in[i])[row];
      switch (s.kinds[1]) {
        case COLLAGE_LEAST: found = is_nan(x) || x < found ? x : found; break;
        case COLLAGE_MOST: found = is_nan(x) || x > found ? x : found; break;
        case COLLAGE_PRODUCT: found *= x; break;
        default: found += x;
      }
    }
    to[row] = s.kinds[1] == COLLAGE_MEAN ? found / T(s.ins) : found;
  }
}

template <typename T>
void softmax_step(const Step &s, const Block &b) {
  T most[COLLAGE_TABLE_BLOCK], sum[COLLAGE_TABLE_BLOCK], shifted[COLLAGE_TABLE_BLOCK];
  const int64_t rows = b.rows;
  for (int64_t row = 0; row < rows; ++row) {
    most[row] = std::numeric_limits<T>::lowest();
    sum[row] = 0;
  }
  for (int32_t i = 0; i < s.ins; ++i) {
    const T *const x = b.column<T>(s.in[i]);
    for (int64_t row = 0; row < rows; ++row) most[row] = std::max(most[row], x[row]);
  }
  for (int32_t i = 0; i < s.ins; ++i) {
    const T *const x = b.column<T>(s.in[i]);
    T *const to = b.column<T>(s.out[i]);
    for (int64_t row = 0; row < rows; ++row) shifted[row] = x[row] - most[row];
    widely(shifted, shifted, rows, [](Doubles x) { return exponential(x); });
    for (int64_t row = 0; row < rows; ++row) {
      const bool zero = s.kinds[1] != 0 && x[row] <= T(0.0000001) && x[row] >= T(-0.0000001);
      to[row] = zero ? x[row] * std::exp(-most[row]) : shifted[row];
      sum[row] += zero ? T(0) : shifted[row];
    }
  }
  for (int32_t i = 0; i < s.ins; ++i) {
    T *const to = b.column<T>(s.out[i]);
    for (int64_t row = 0; row < rows; ++row) to[row] /= sum[row];
  }
}

template <typename T>
void largest_step(const Step &s, const Block &b) {
  int64_t *const to = b.column<int64_t>(s.out[0]);
  for (int64_t row = 0; row < b.rows; ++row) {
    T most = b.column<T>(s.in[0])[row];
    int64_t place = 0;
    for (int32_t i = 1; i < s.ins; ++i) {
      const T x = b.column<T>(s.in[i])[row];
      if (x > most) {
        most = x;
        place = i;
      }
    }
    to[row] = place;
  }
}

template <typename T>
void select_step(const Step &s, const Block &b) {
  for (int32_t i = 0; i < s.outs; ++i) {
    const int64_t *which = b.column<int64_t>(s.in[i]);
    const T *one = b.column<T>(s.in[s.outs + i]), *other = b.column<T>(s.in[2 * s.outs + i]);
    T *to = b.column<T>(s.out[i]);
    for (int64_t row = 0; row < b.rows; ++row) to[row] = which[row] ? one[row] : other[row];
  }
}

template <typename T>
void gather_step(const Step &s, const Block &b) {
  const T *numbers = static_cast<const T *>(s.data[0]);
  for (int32_t i = 0; i < s.outs; ++i, numbers += s.sizes[0]) {
    const int64_t *const code = b.column<int64_t>(s.in[i]);
    T *const to = b.column<T>(s.out[i]);
    for (int64_t row = 0; row < b.rows; ++row) to[row] = numbers[code[row] >= 0 && code[row] < s.sizes[0] ? code[row] : 0];
  }
}

// `scratch` has room for the addresses of the columns, and for what a block of soft trees works in.
inline void soft_step(const Step &s, const Block &b, char *scratch) {
  const auto &t = *static_cast<const collage_soft_trees *>(s.data[0]);
  const auto columns = reinterpret_cast<char **>(scratch);
  for (int32_t i = 0; i < s.ins; ++i) columns[i] = b.column<char>(s.in[i]);
  for (int32_t i = 0; i < s.outs; ++i) columns[s.ins + i] = b.column<char>(s.out[i]);
  const int64_t room = (s.ins + s.outs + 7) / 8 * 64;
  collage_soft_trees_sums(
      &t, reinterpret_cast<const int64_t *const *>(columns), reinterpret_cast<const float *const *>(columns + t.tables),
      reinterpret_cast<float *const *>(columns + s.ins), b.rows, reinterpret_cast<float *>(scratch + room));
}

}  // namespace collage
#endif
