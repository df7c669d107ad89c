// Products of few rows with a large constant matrix, whose weights come from memory on each run.
//
// Each share reads its columns of the weights once, in the order in which they lie; gemm_worker.h tells how.
// BERT-base's 72 products of 64 rows, 340 MB of weights, take 22.6 ms on two cores, 482 GFLOP/s; where all is in the
// caches it is 511.

#include "gemm.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "gemm_worker.h"

namespace {

using namespace collage;

using Shape = collage_gemm_shape;
using Buffers = collage_gemm_buffers;

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

#include "target_end.h"

#else

extern "C" int collage_gemm(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
