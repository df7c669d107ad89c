// What products have in common whose constant matrix of float32 streams through the caches once: one share's rows
// against its blocks of columns. To be included after all other headers.
//
// A share reads its columns of the weights in the order in which they lie: slices of the depth, in each of them panels
// of 48 columns. All rows are multiplied with a panel while it is in the L2 cache, and prefetch the next one meanwhile,
// evenly, so that memory is never waited for nor ever idle (see below for few rows with AVX2). Rows that are all in one
// tile may leave that to the processor: they read everything once and in order.

#ifndef COLLAGE_NATIVE_KERNELS_GEMM_WORKER_H
#define COLLAGE_NATIVE_KERNELS_GEMM_WORKER_H

#include "finishing.h"
#include "gemm.h"
#include "range.h"
#include "tile.h"

namespace collage {
namespace {

constexpr int kRows = tile_rows(8);
constexpr int kPanel = 3;  // blocks of columns of a register tile

// With AVX2 a tile of up to two rows has whole panels, so that it reads memory in order, which the processor prefetches
// best by itself. More rows, up to a number whose sums fit in the L1 cache, take a panel in pieces, which they find
// there, and prefetch the next one.
constexpr int kFewRows = 64, kInOrder = 2;
constexpr int64_t kPiece = 64;  // of the depth

// Rows of a tile of a piece, which is read once for each of the tiles.
int64_t piece_rows(int64_t rows) { return rows <= 4 ? 2 : rows <= 8 ? 4 : kRows; }

// Adds to what is there unless it is the first slice of the depth.
template <int MR, int NR>
void tile(const Plain &o, float *c, intptr_t row, bool first, Mask mask) {
  multiply_panel<MR, NR>(o, [&](const auto &sum, auto block) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < sum.kBlocks; ++j) {
        const Mask columns = block + j == NR - 1 ? mask : kAllLanes;
        float *to = c + i * row + (block + j) * kLanes;
        Floats x = sum.at[i][j];
        if (!first) x += load(columns, to);
        store(to, columns, x);
      }
  });
}

// Goes on with the sums of MR rows, unless it is the first piece of a panel.
template <int MR, int NR, int FIRST = 0>
void piece(const Plain &o, float *sums, bool first) {
  constexpr int kHere = std::min(tile_blocks(MR, NR), NR - FIRST);
  const intptr_t before = o.ahead_lines * FIRST / NR, lines = o.ahead_lines * (FIRST + kHere) / NR - before;
  Accumulators<MR, kHere, NR> sum;
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < kHere; ++j) sum.at[i][j] = first ? zeros() : load(sums + (i * kPanel + FIRST + j) * kLanes);
  const float *a = o.a, *b = o.b + FIRST * kLanes, *ahead = o.ahead + before * o.steps() * kLanes;
  for (intptr_t k = 0; k < o.depth; k += kLanes) {
    for (intptr_t line = 0; line < lines; ++line, ahead += kLanes) _mm_prefetch(ahead, _MM_HINT_T0);
    const intptr_t end = std::min<intptr_t>(kLanes, o.depth - k);
#pragma GCC unroll 4
    for (intptr_t i = 0; i < end; ++i, ++a, b += NR * kLanes) sum.add(a, o.a_row, b);
  }
#pragma GCC unroll 6
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < kHere; ++j) store(sums + (i * kPanel + FIRST + j) * kLanes, sum.at[i][j]);
  if constexpr (FIRST + kHere < NR) piece<MR, NR, FIRST + kHere>(o, sums, first);
}

using Piece = void (*)(const Plain &, float *, bool);

template <int NR>
constexpr auto kPieces = by_rows<Piece, kRows>([](auto rows) { return piece<rows, NR>; });

using Tile = void (*)(const Plain &, float *, intptr_t, bool, Mask);

template <int NR>
constexpr auto kTiles = by_rows<Tile, kRows>([](auto rows) { return tile<rows, NR>; });

// One share's work: rows against blocks of columns.
class Worker {
 public:
  Worker(const collage_gemm_shape &s, const collage_gemm_buffers &b, Range blocks) : s_(s), b_(b), blocks_(blocks) {}

  // Where the share's weights begin in those of a matrix.
  const float *first(const float *weights) const { return weights + blocks_.begin * kLanes * s_.depth; }

  // Streams the share's weights once. `after` is what is read after them and can be prefetched, or nullptr.
  void chunk(Range rows, const float *after = nullptr) const {
    const float *weights = first(b_.weights);
    const float *const end = b_.weights + blocks_.end * kLanes * s_.depth;
    for (int64_t k = 0; k < s_.depth; k += s_.slice) {
      const Range depth{k, std::min(k + s_.slice, s_.depth)};
      for (int64_t block = blocks_.begin; block < blocks_.end; block += kPanel) {
        const Range blocks{block, std::min(block + kPanel, blocks_.end)};
        const float *const next = weights + (depth.end - depth.begin) * (blocks.end - blocks.begin) * kLanes;
        panel(rows, depth, blocks, weights, next < end ? next : after);
        weights = next;
      }
    }
  }

 private:
  void panel(Range rows, Range depth, Range blocks, const float *weights, const float *next) const {
    const int wide = int(blocks.end - blocks.begin);
    const intptr_t column = blocks.begin * kLanes, width = s_.columns;
    const bool few = !kAvx512 && rows.end - rows.begin <= kFewRows;
    const int64_t groups = few ? 1 : parts(rows, kRows), lines = (depth.end - depth.begin) * wide;
    const auto &tiles = wide == 3 ? kTiles<3> : wide == 2 ? kTiles<2> : kTiles<1>;
    Ending ending{b_.bias == nullptr ? nullptr : b_.bias + column, nullptr, 0xffff};
    if ((column + wide * kLanes) > width) ending.mask = first_lanes(width % kLanes);
    const Finishing how{s_.columns, s_.residual_first != 0, s_.low, s_.high};
    Plain o{};
    o.a_row = s_.depth;
    o.depth = depth.end - depth.begin;
    o.b = weights;
    const bool more = next != nullptr && !s_.in_order;
    o.ahead_lines = more ? (wide * kLanes + groups - 1) / groups : 0;
    for (int64_t group = 0; group < groups; ++group) {
      const Range some = part(rows, group, groups);
      const int64_t count = some.end - some.begin;
      o.a = b_.src + some.begin * s_.depth + depth.begin;
      if (more) o.ahead = next + lines * group / groups * kLanes;
      const intptr_t at = some.begin * width + column;
      if (few)
        in_order(o, next, count, wide, b_.dst + at, depth.begin == 0, ending.mask);
      else
        tiles[count](o, b_.dst + at, width, depth.begin == 0, ending.mask);
      if (depth.end < s_.depth) continue;
      if (b_.residual != nullptr) ending.residual = b_.residual + at;
      kFinish[s_.activation](how, ending, b_.dst + at, count, wide);
    }
  }

  // The sums of few rows and a panel, to `c`, or added to what is there unless it is the first slice of the depth. The
  // last piece prefetches the beginning of `next`, if there is one.
  void in_order(const Plain &panel, const float *next, int64_t rows, int wide, float *c, bool first,
                Mask mask) const {
    alignas(64) float sums[kFewRows * kPanel * kLanes];
    const auto &pieces = wide == 3 ? kPieces<3> : wide == 2 ? kPieces<2> : kPieces<1>;
    Plain o = panel;
    const Range all{0, rows};
    const bool once = rows <= kInOrder;
    const int64_t groups = parts(all, piece_rows(rows)), most = once ? panel.depth : kPiece;
    const intptr_t ahead_lines = once ? 0 : parts({0, wide * kLanes}, groups);
    for (int64_t k = 0; k < panel.depth; k += most) {
      o.depth = std::min<int64_t>(most, panel.depth - k);
      o.b = panel.b + k * wide * kLanes;
      const float *const then = k + most < panel.depth ? o.b + o.depth * wide * kLanes : next;
      o.ahead_lines = then == nullptr ? 0 : ahead_lines;
      for (int64_t group = 0; group < groups; ++group) {
        const Range some = part(all, group, groups);
        o.a = panel.a + some.begin * panel.a_row + k;
        if (then != nullptr) o.ahead = then + group * o.depth / groups * wide * kLanes;
        pieces[some.end - some.begin](o, sums + some.begin * kPanel * kLanes, k == 0);
      }
    }
    for (int64_t row = 0; row < rows; ++row)
      for (int j = 0; j < wide; ++j) {
        const Mask columns = j == wide - 1 ? mask : kAllLanes;
        float *const to = c + row * s_.columns + j * kLanes;
        Floats x = load(sums + (row * kPanel + j) * kLanes);
        if (!first) x += load(columns, to);
        store(to, columns, x);
      }
  }

  const collage_gemm_shape &s_;
  const collage_gemm_buffers &b_;
  const Range blocks_;
};

}  // namespace
}  // namespace collage
#endif
