// Rows that choose one of many matrices, in the order of these.

#ifndef COLLAGE_NATIVE_KERNELS_EXPERT_ROWS_H
#define COLLAGE_NATIVE_KERNELS_EXPERT_ROWS_H

#include <algorithm>

#include "expert_gemm.h"
#include "kernels.h"
#include "range.h"

namespace collage {

inline int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// A share's scratch memory for them. Gathered rows are `length` floats apart, the depth or more.
struct ExpertRows {
  int64_t *begin;      // [expert, and two more]: where its rows begin in `order`; they end where the next one's begin
  int64_t *order;      // [row]: the rows, sorted by expert
  int64_t *which;      // [row]: the row's expert, from 0 on
  float *rows, *sums;  // gathered rows of an expert, and their results

  static int64_t most(const collage_expert_gemm_shape &s) { return std::min(s.rows, s.row_chunk); }
  static int64_t number_bytes(const collage_expert_gemm_shape &s) {
    return whole_lines(int64_t(sizeof(int64_t)) * (s.experts + 2 + 2 * s.rows));
  }
  static int64_t row_bytes(const collage_expert_gemm_shape &s, int64_t floats) {
    return whole_lines(int64_t(sizeof(float)) * most(s) * floats);
  }
  static int64_t bytes(const collage_expert_gemm_shape &s, int64_t length) {
    return number_bytes(s) + row_bytes(s, length) + row_bytes(s, s.columns);
  }

  ExpertRows(const collage_expert_gemm_shape &s, void *at, int64_t length) {
    begin = static_cast<int64_t *>(at);
    order = begin + s.experts + 2;
    which = order + s.rows;
    char *const gathered = static_cast<char *>(at) + number_bytes(s);
    rows = reinterpret_cast<float *>(gathered);
    sums = reinterpret_cast<float *>(gathered + row_bytes(s, length));
  }

  // Sorts the rows by the expert that they choose, and keeps their order otherwise. Returns false for one out of range.
  bool sort(const collage_expert_gemm_shape &s, const int64_t *choice) {
    std::fill_n(begin, s.experts + 2, 0);
    for (int64_t row = 0; row < s.rows; ++row) {
      const int64_t given = choice[row], at = given < 0 ? given + s.experts : given;
      if (at < 0 || at >= s.experts) return false;
      which[row] = at;
      ++begin[at + 2];
    }
    for (int64_t expert = 0; expert < s.experts; ++expert) begin[expert + 2] += begin[expert + 1];
    for (int64_t row = 0; row < s.rows; ++row) order[begin[which[row] + 1]++] = row;
    return true;
  }

  // The first expert from `expert` on that has rows, or the number of all experts.
  int64_t chosen(const collage_expert_gemm_shape &s, int64_t expert) const {
    while (expert < s.experts && begin[expert] == begin[expert + 1]) ++expert;
    return expert;
  }
};

// Calls multiply(src, dst, rows, expert, next) for each chosen expert, and up to row_chunk of its rows at a time, which
// lie one after another at `src`, as their results do at `dst`. `next` is the expert whose weights are read after that,
// or the number of all experts. `given` are the columns that the share computes. A single row, and rows that follow
// each other, are where the caller has them; others are gathered, and their results scattered. Where rows of `length`
// floats are read, and that is more than the depth, all are gathered, and zeros are behind each.
template <typename Multiply>
int each_expert(const collage_expert_gemm_shape &s, const collage_expert_gemm_buffers &b, Range given,
                int64_t length, Multiply multiply) {
  ExpertRows by(s, b.scratch, length);
  if (!by.sort(s, b.choice)) return COLLAGE_OUT_OF_RANGE;
  for (int64_t expert = by.chosen(s, 0); expert < s.experts;) {
    const int64_t other = by.chosen(s, expert + 1);
    const Range all{by.begin[expert], by.begin[expert + 1]};
    const int64_t chunks = parts(all, s.row_chunk);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const Range some = part(all, chunk, chunks);
      const int64_t *const order = by.order + some.begin;
      const int64_t count = some.end - some.begin, next = chunk + 1 < chunks ? expert : other;
      const bool follow = order[count - 1] - order[0] == count - 1;
      const float *src = b.src + order[0] * s.depth;
      if (!follow || length > s.depth) {
        src = by.rows;
        for (int64_t i = 0; i < count; ++i) {
          std::copy_n(b.src + order[i] * s.depth, s.depth, by.rows + i * length);
          std::fill_n(by.rows + i * length + s.depth, length - s.depth, 0.f);
        }
      }
      multiply(src, follow ? b.dst + order[0] * s.columns : by.sums, count, expert, next);
      for (int64_t i = 0; i < count && !follow; ++i)
        std::copy_n(by.sums + i * s.columns + given.begin, given.end - given.begin,
                    b.dst + order[i] * s.columns + given.begin);
    }
    expert = other;
  }
  return 0;
}

}  // namespace collage
#endif
