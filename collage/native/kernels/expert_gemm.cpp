// Products of rows that choose one of many matrices, of which most are chosen by few rows, or by none.
//
// Each share sorts the rows by expert, so that there is no barrier. Then it reads its columns of each chosen expert's
// weights once for up to `row_chunk` rows, as gemm_worker.h tells, and prefetches the next expert's first panel at the
// end of the last one. Weights that nobody chooses are never read.

#include "expert_gemm.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>
#include <limits>

#include "expert_rows.h"
#include "gemm_worker.h"

namespace {

using namespace collage;

using Shape = collage_expert_gemm_shape;
using Buffers = collage_expert_gemm_buffers;

// The product with one expert's matrix.
collage_gemm_shape product(const Shape &s) {
  collage_gemm_shape found{};
  found.depth = s.depth;
  found.columns = s.columns;
  found.slice = s.slice;
  found.in_order = s.in_order;
  found.low = -std::numeric_limits<float>::infinity();
  found.high = std::numeric_limits<float>::infinity();
  return found;
}

int run(const Shape &s, const Buffers &b, int64_t share) {
  const Range all{0, (s.columns + kLanes - 1) / kLanes}, blocks = part(all, share, s.shares);
  const int64_t matrix = all.end * kLanes * s.depth;
  const collage_gemm_shape shape = product(s);
  collage_gemm_buffers buffers{};
  const Worker worker(shape, buffers, blocks);
  const Range given{std::min(blocks.begin * kLanes, s.columns), std::min(blocks.end * kLanes, s.columns)};
  const auto multiply = [&](const float *src, float *dst, int64_t rows, int64_t expert, int64_t next) {
    buffers.src = src;
    buffers.dst = dst;
    buffers.weights = b.weights + expert * matrix;
    worker.chunk({0, rows}, next < s.experts ? worker.first(b.weights + next * matrix) : nullptr);
  };
  return each_expert(s, b, given, s.depth, multiply);
}

}  // namespace

extern "C" int64_t collage_expert_gemm_scratch(const collage_expert_gemm_shape *shape) {
  return collage::ExpertRows::bytes(*shape, shape->depth);
}

extern "C" int collage_expert_gemm(void *a, void *b, intptr_t n, void *) {
  return run(*static_cast<const Shape *>(a), *static_cast<const Buffers *>(b), n);
}

#include "target_end.h"

#else

extern "C" int64_t collage_expert_gemm_scratch(const collage_expert_gemm_shape *) { return 0; }
extern "C" int collage_expert_gemm(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
