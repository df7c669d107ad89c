// The products of expert_gemm.cpp with weights of bfloat16, of which there are half as many bytes to read. They are
// widened and multiplied with float32 rows, as in bf16_gemm.cpp.

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
  return multiply_experts<Bf16Weights>(
      s, b, share, [&](const float *sums, float *dst, int64_t rows, int64_t, int64_t columns, int64_t) {
        for (int64_t row = 0; row < rows; ++row) std::copy_n(sums + row * kWide, columns, dst + row * s.columns);
      });
}

}  // namespace

extern "C" int64_t collage_expert_gemm_bf16_scratch(const collage_expert_gemm_shape *shape) {
  return expert_scratch<Bf16Weights>(*shape);
}

extern "C" int collage_expert_gemm_bf16(void *a, void *b, intptr_t n, void *) {
  return run(*static_cast<const Shape *>(a), *static_cast<const Buffers *>(b), n);
}

#include "target_end.h"

#else

extern "C" int64_t collage_expert_gemm_bf16_scratch(const collage_expert_gemm_shape *) { return 0; }
extern "C" int collage_expert_gemm_bf16(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
