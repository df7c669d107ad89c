// The products of expert_gemm.cpp with weights of bfloat16, of which there are half as many bytes to read. They are
// widened and multiplied with float32 rows, as in bf16_gemm.cpp.

#include "expert_gemm.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "expert_rows.h"
#include "widened.h"

namespace {

using namespace collage;

constexpr int64_t kSums = 8 * kWide;  // of a tile

using Shape = collage_expert_gemm_shape;
using Buffers = collage_expert_gemm_buffers;

int run(const Shape &s, const Buffers &b, int64_t share) {
  const Range all{0, (s.columns + kLanes - 1) / kLanes}, blocks = part(all, share, s.shares);
  const Range given{std::min(blocks.begin * kLanes, s.columns), std::min(blocks.end * kLanes, s.columns)};
  Streamed o{};
  o.lines = s.depth / 2;
  o.a_row = s.depth;
  const int64_t matrix = all.end * kLanes * o.lines;
  float *const sums = reinterpret_cast<float *>(static_cast<char *>(b.scratch) + ExpertRows::bytes(s));
  return each_expert(s, b, given, [&](const float *src, float *dst, int64_t rows, int64_t expert, int64_t next) {
    o.a = src;
    const float *const after = next < s.experts ? b.weights + next * matrix + blocks.begin * kLanes * o.lines : nullptr;
    each_panel(
        o, sizeof(float), {0, rows}, kTileRows, blocks, b.weights + expert * matrix, sums, s.in_order != 0,
        [](int wide) -> StreamedTiles { return widened_tiles<Bf16Weights>(wide); },
        [&](Range some, int64_t column, int64_t columns) {
          const int64_t count = std::min(columns, s.columns - column);
          for (int64_t row = some.begin; row < some.end; ++row)
            std::copy_n(sums + (row - some.begin) * kWide, count, dst + row * s.columns + column);
        },
        after);
  });
}

}  // namespace

extern "C" int64_t collage_expert_gemm_bf16_scratch(const collage_expert_gemm_shape *shape) {
  return collage::ExpertRows::bytes(*shape) + int64_t(sizeof(float)) * kSums;
}

extern "C" int collage_expert_gemm_bf16(void *a, void *b, intptr_t n, void *) {
  return run(*static_cast<const Shape *>(a), *static_cast<const Buffers *>(b), n);
}

#else

extern "C" int64_t collage_expert_gemm_bf16_scratch(const collage_expert_gemm_shape *) { return 0; }
extern "C" int collage_expert_gemm_bf16(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
