// Products of rows that choose one of many matrices, whose weights have fewer bits than float32 and are widened.
//
// To be included after all other headers.

#ifndef COLLAGE_NATIVE_KERNELS_EXPERT_WIDENED_H
#define COLLAGE_NATIVE_KERNELS_EXPERT_WIDENED_H

#include "expert_rows.h"
#include "widened.h"

namespace collage {

// Lines of 64 bytes of a block of columns.
template <typename Weights>
int64_t expert_lines(const collage_expert_gemm_shape &s) {
  return (s.depth + Weights::kTogether - 1) / Weights::kTogether;
}

constexpr int64_t kExpertSums = 8 * kWide;  // of the largest tile, that of AVX-512

// A share's rows, and behind them the sums of a tile.
template <typename Weights>
int64_t rows_bytes(const collage_expert_gemm_shape &s) {
  return ExpertRows::bytes(s, expert_lines<Weights>(s) * Weights::kTogether);
}
template <typename Weights>
int64_t expert_scratch(const collage_expert_gemm_shape &s) {
  return rows_bytes<Weights>(s) + int64_t(sizeof(float)) * kExpertSums;
}

// A share's products. finish(sums, dst, rows, column, columns, expert) writes what a tile has summed up: its rows are
// kWide apart at `sums`, and `dst` is where they go, s.columns apart.
template <typename Weights, typename Finish>
int multiply_experts(const collage_expert_gemm_shape &s, const collage_expert_gemm_buffers &b, int64_t share,
                     Finish finish) {
  const Range all{0, (s.columns + kLanes - 1) / kLanes}, blocks = part(all, share, s.shares);
  const Range given{std::min(blocks.begin * kLanes, s.columns), std::min(blocks.end * kLanes, s.columns)};
  Streamed o{};
  o.lines = expert_lines<Weights>(s);
  o.a_row = o.lines * Weights::kTogether;
  const int64_t matrix = all.end * kLanes * o.lines, begin = blocks.begin * kLanes * o.lines;
  float *const sums = reinterpret_cast<float *>(static_cast<char *>(b.scratch) + rows_bytes<Weights>(s));
  const auto multiply = [&](const float *src, float *dst, int64_t rows, int64_t expert, int64_t next) {
    o.a = src;
    each_panel(
        o, sizeof(float), {0, rows}, Weights::kMostRows, blocks, b.weights + expert * matrix, sums, s.in_order != 0,
        [](int wide) -> StreamedTiles { return widened_tiles<Weights>(wide); },
        [&](Range some, int64_t column, int64_t columns) {
          finish(sums, dst + some.begin * s.columns + column, some.end - some.begin, column,
                 std::min(columns, s.columns - column), expert);
        },
        next < s.experts ? b.weights + next * matrix + begin : nullptr);
  };
  return each_expert(s, b, given, o.a_row, multiply);
}

}  // namespace collage
#endif
