// The products of expert_gemm.cpp with weights of 8 bits, of which there are a quarter as many bytes to read. Each
// column of each expert has a factor of its own. Weights are widened and multiplied with float32 rows, as in
// int8_gemm.cpp, and the sums by the factors.

#include "expert_gemm.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "expert_widened.h"

namespace {

using namespace collage;

using Shape = collage_expert_gemm_shape;
using Buffers = collage_expert_gemm_buffers;

int run(const Shape &s, const Buffers &b, int64_t share) {
  const int64_t whole = (s.columns + kLanes - 1) / kLanes * kLanes;
  return multiply_experts<Int8Weights>(
      s, b, share,
      [&](const float *sums, float *dst, int64_t rows, int64_t column, int64_t columns, int64_t expert) {
        const float *const scales = b.scales + expert * whole + column;
        for (int64_t j = 0; j < columns; j += kLanes) {
          const Mask mask = first_lanes(columns - j);
          const Floats by = load(mask, scales + j);
          for (int64_t row = 0; row < rows; ++row)
            store(dst + row * s.columns + j, mask, load(sums + row * kWide + j) * by);
        }
      });
}

}  // namespace

extern "C" int64_t collage_expert_gemm_int8_scratch(const collage_expert_gemm_shape *shape) {
  return expert_scratch<Int8Weights>(*shape);
}

extern "C" int collage_expert_gemm_int8(void *a, void *b, intptr_t n, void *) {
  return run(*static_cast<const Shape *>(a), *static_cast<const Buffers *>(b), n);
}

#include "target_end.h"

#else

extern "C" int64_t collage_expert_gemm_int8_scratch(const collage_expert_gemm_shape *) { return 0; }
extern "C" int collage_expert_gemm_int8(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
