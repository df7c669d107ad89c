// Products of few rows with a large constant matrix, whose weights come from memory on each run.
//
// Each share reads its columns of the weights once, in the order in which they lie: slices of the depth, in each
// of them panels of 48 columns. All rows are multiplied with a panel while it is in the L2 cache, and prefetch
// the next one meanwhile, evenly, so that memory is never waited for nor ever idle.

#include "gemm.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "avx512.h"
#include "epilogue.h"
#include "tile.h"

namespace {

using collage::Accumulators;
using collage::kLanes;
using collage::Plain;

constexpr int kRows = 8;   // of a register tile
constexpr int kPanel = 3;  // blocks of columns of a register tile

using Shape = collage_gemm_shape;
using Buffers = collage_gemm_buffers;

// Adds to what is there unless it is the first slice of the depth.
template <int MR, int NR>
void tile(const Plain &o, float *c, intptr_t row, bool first, __mmask16 mask) {
  Accumulators<MR, NR> sum;
  collage::multiply(o, sum);
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) {
      const __mmask16 columns = j == NR - 1 ? mask : __mmask16(0xffff);
      float *to = c + i * row + j * kLanes;
      __m512 x = sum.at[i][j];
      if (!first) x += _mm512_maskz_loadu_ps(columns, to);
      _mm512_mask_storeu_ps(to, columns, x);
    }
}

// What happens to the sums.
struct Ending {
  const float *bias;      // of these columns, or nullptr
  const float *residual;  // of this tile, or nullptr
  __mmask16 mask;         // columns of the last block
};

template <collage::Activation ACTIVATION>
void finish(const Shape &s, const Ending &end, float *c, int64_t rows, int wide) {
  const __m512 low = _mm512_set1_ps(s.low), high = _mm512_set1_ps(s.high), zero = _mm512_setzero_ps();
  const bool before = s.residual_first != 0;
  for (int j = 0; j < wide; ++j) {
    const __mmask16 mask = j == wide - 1 ? end.mask : __mmask16(0xffff);
    const __m512 bias = end.bias == nullptr ? zero : _mm512_loadu_ps(end.bias + j * kLanes);
    for (int64_t i = 0; i < rows; ++i) {
      const intptr_t at = i * s.columns + j * kLanes;
      __m512 x = _mm512_maskz_loadu_ps(mask, c + at) + bias;
      const __m512 residual = end.residual == nullptr ? zero : _mm512_maskz_loadu_ps(mask, end.residual + at);
      if (before) x += residual;
      x = collage::clamp(collage::activate(x, ACTIVATION), low, high);
      if (!before) x += residual;
      _mm512_mask_storeu_ps(c + at, mask, x);
    }
  }
}

using Finish = void (*)(const Shape &, const Ending &, float *, int64_t, int);

constexpr Finish kFinish[] = {finish<collage::kNone>, finish<collage::kGelu>, finish<collage::kTanh>,
                              finish<collage::kSigmoid>, finish<collage::kSwish>};
constexpr int64_t kActivations = sizeof kFinish / sizeof *kFinish;

using Tile = void (*)(const Plain &, float *, intptr_t, bool, __mmask16);

template <int NR>
constexpr Tile kTiles[kRows + 1] = {nullptr,    tile<1, NR>, tile<2, NR>, tile<3, NR>, tile<4, NR>,
                                    tile<5, NR>, tile<6, NR>, tile<7, NR>, tile<8, NR>};

void run(const Shape &s, const Buffers &b, int64_t share) {
  const int64_t blocks = (s.columns + kLanes - 1) / kLanes;
  const int64_t begin = blocks * share / s.shares, end = blocks * (share + 1) / s.shares;
  const int64_t groups = (s.rows + kRows - 1) / kRows;
  const int tail = int(s.columns % kLanes);
  const float *weights = b.weights + begin * kLanes * s.depth;
  const float *const weights_end = b.weights + end * kLanes * s.depth;
  for (int64_t k = 0; k < s.depth; k += s.slice) {
    const int64_t depth = std::min(s.slice, s.depth - k);
    for (int64_t block = begin; block < end; block += kPanel) {
      const int wide = int(std::min<int64_t>(kPanel, end - block));
      const int64_t lines = depth * wide;
      const Tile *const tiles = wide == 3 ? kTiles<3> : wide == 2 ? kTiles<2> : kTiles<1>;
      Plain o{};
      o.a_row = s.depth;
      o.depth = depth;
      o.b = weights;
      Ending ending{b.bias == nullptr ? nullptr : b.bias + block * kLanes, nullptr, 0xffff};
      if (tail != 0 && block + wide == blocks) ending.mask = __mmask16((1u << tail) - 1);
      const float *const next = weights + lines * kLanes;
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t row = s.rows * group / groups, until = s.rows * (group + 1) / groups;
        o.a = b.src + row * s.depth + k;
        if (next < weights_end) {
          o.ahead = next + lines * group / groups * kLanes;
          o.ahead_lines = (wide * kLanes + groups - 1) / groups;
        } else {
          o.ahead_lines = 0;
        }
        const intptr_t at = row * s.columns + block * kLanes;
        tiles[until - row](o, b.dst + at, s.columns, k == 0, ending.mask);
        if (k + depth < s.depth) continue;
        if (b.residual != nullptr) ending.residual = b.residual + at;
        kFinish[s.activation](s, ending, b.dst + at, until - row, wide);
      }
      weights = next;
    }
  }
}

}  // namespace

extern "C" int collage_gemm(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  if (shape.activation < 0 || shape.activation >= kActivations) return COLLAGE_UNAVAILABLE;
  run(shape, *static_cast<const Buffers *>(b), n);
  return 0;
}

#else

extern "C" int collage_gemm(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
