// Products of few rows with a large constant matrix, whose weights come from memory on each run.
//
// Each share reads its columns of the weights once, in the order in which they lie: slices of the depth, in each
// of them panels of 48 columns. All rows are multiplied with a panel while it is in the L2 cache, and prefetch
// the next one meanwhile, evenly, so that memory is never waited for nor ever idle. BERT-base's 72 products of 64
// rows, 340 MB of weights, take 22.6 ms on two cores, 482 GFLOP/s; where all is in the caches it is 511.

#include "gemm.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "finishing.h"
#include "tile.h"

namespace {

using namespace collage;

constexpr int kRows = tile_rows(8);
constexpr int kPanel = 3;  // blocks of columns of a register tile


// Rows of a register tile, at most. With AVX2 a tile of two rows has whole panels, so that memory is read in order. With
// more than four rows that gains nothing, since the others read the panel from the L2 cache.
int64_t rows_at_once(int64_t rows) { return kAvx512 || rows > 4 ? kRows : 2; }

using Shape = collage_gemm_shape;
using Buffers = collage_gemm_buffers;

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

using Tile = void (*)(const Plain &, float *, intptr_t, bool, Mask);

template <int NR>
constexpr auto kTiles = by_rows<Tile, kRows>([](auto rows) { return tile<rows, NR>; });

struct Range {
  int64_t begin, end;
};

Range part(Range whole, int64_t which, int64_t parts) {
  const int64_t size = whole.end - whole.begin;
  return {whole.begin + size * which / parts, whole.begin + size * (which + 1) / parts};
}

int64_t parts(Range whole, int64_t most) { return (whole.end - whole.begin + most - 1) / most; }

// One share's work: rows against blocks of columns.
class Worker {
 public:
  Worker(const Shape &s, const Buffers &b, Range blocks) : s_(s), b_(b), blocks_(blocks) {}

  // Streams the share's weights once.
  void chunk(Range rows) const {
    const float *weights = b_.weights + blocks_.begin * kLanes * s_.depth;
    for (int64_t k = 0; k < s_.depth; k += s_.slice) {
      const Range depth{k, std::min(k + s_.slice, s_.depth)};
      for (int64_t block = blocks_.begin; block < blocks_.end; block += kPanel) {
        const Range blocks{block, std::min(block + kPanel, blocks_.end)};
        panel(rows, depth, blocks, weights);
        weights += (depth.end - depth.begin) * (blocks.end - blocks.begin) * kLanes;
      }
    }
  }

 private:
  void panel(Range rows, Range depth, Range blocks, const float *weights) const {
    const int wide = int(blocks.end - blocks.begin);
    const intptr_t column = blocks.begin * kLanes, width = s_.columns;
    const int64_t groups = parts(rows, rows_at_once(rows.end - rows.begin)), lines = (depth.end - depth.begin) * wide;
    const auto &tiles = wide == 3 ? kTiles<3> : wide == 2 ? kTiles<2> : kTiles<1>;
    Ending ending{b_.bias == nullptr ? nullptr : b_.bias + column, nullptr, 0xffff};
    if ((column + wide * kLanes) > width) ending.mask = first_lanes(width % kLanes);
    const Finishing how{s_.columns, s_.residual_first != 0, s_.low, s_.high};
    Plain o{};
    o.a_row = s_.depth;
    o.depth = depth.end - depth.begin;
    o.b = weights;
    const float *const next = weights + lines * kLanes;
    const bool more = next < b_.weights + blocks_.end * kLanes * s_.depth;
    o.ahead_lines = more ? (wide * kLanes + groups - 1) / groups : 0;
    for (int64_t group = 0; group < groups; ++group) {
      const Range some = part(rows, group, groups);
      const int64_t count = some.end - some.begin;
      o.a = b_.src + some.begin * s_.depth + depth.begin;
      if (more) o.ahead = next + lines * group / groups * kLanes;
      const intptr_t at = some.begin * width + column;
      tiles[count](o, b_.dst + at, width, depth.begin == 0, ending.mask);
      if (depth.end < s_.depth) continue;
      if (b_.residual != nullptr) ending.residual = b_.residual + at;
      kFinish[s_.activation](how, ending, b_.dst + at, count, wide);
    }
  }

  const Shape &s_;
  const Buffers &b_;
  const Range blocks_;
};

void run(const Shape &s, const Buffers &b, int64_t share) {
  Range rows{0, s.rows}, blocks{0, (s.columns + kLanes - 1) / kLanes};
  (s.by_rows ? rows : blocks) = part(s.by_rows ? rows : blocks, share, s.shares);
  const Worker worker(s, b, blocks);
  const int64_t chunks = parts(rows, s.row_chunk);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) worker.chunk(part(rows, chunk, chunks));
}

}  // namespace

extern "C" int collage_gemm(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  if (shape.activation < 0 || shape.activation >= collage::kActivations) return COLLAGE_UNAVAILABLE;
  run(shape, *static_cast<const Buffers *>(b), n);
  return 0;
}

#else

extern "C" int collage_gemm(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
