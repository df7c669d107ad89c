// See blas.h.

#include "blas.h"

namespace {

enum : int { kRowMajor = 101, kAsIs = 111, kTransposed = 112, kPacked = 151 };  // as in cblas.h and mkl_cblas.h

using Gemm = void (*)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
using GemmCompute = void (*)(int, int, int, int, int, int, const float *, int, const float *, int, float, float *, int);
using Bf16Compute = void (*)(int, int, int, int, int, int, float, const void *, int, const void *, int, float, float *,
                             int);
using GemmBatch = void (*)(int, const int *, const int *, const int *, const int *, const int *, const float *,
                           const float **, const int *, const float **, const int *, const float *, float **,
                           const int *, int, const int *);

int order(int32_t transposed) { return transposed != 0 ? kTransposed : kAsIs; }

void multiply_bf16(const collage_blas &blas, const collage_product &p, const collage_matrices &m) {
  reinterpret_cast<Bf16Compute>(blas.bf16_compute)(kRowMajor, order(p.left_transposed), kPacked, p.rows, p.columns,
                                                   p.depth, p.factor, *m.left, p.left_row, *m.right, p.right_row, 0.0f,
                                                   *m.dst, p.dst_row);
}

void multiply(const collage_blas &blas, const collage_product &p, const collage_matrices &m) {
  const int left = order(p.left_transposed), right = order(p.right_transposed);
  const float zero = 0.0f;
  switch (p.kind) {
    case COLLAGE_PACKED:  // the factor is in the packed matrix
      reinterpret_cast<GemmCompute>(blas.sgemm_compute)(kRowMajor, left, kPacked, p.rows, p.columns, p.depth, *m.left,
                                                        p.left_row, *m.right, p.right_row, zero, *m.dst, p.dst_row);
      break;
    case COLLAGE_BATCH:
      reinterpret_cast<GemmBatch>(blas.sgemm_batch)(kRowMajor, &left, &right, &p.rows, &p.columns, &p.depth, &p.factor,
                                                    m.left, &p.left_row, m.right, &p.right_row, &zero, m.dst,
                                                    &p.dst_row, 1, &p.count);
      break;
    default:
      reinterpret_cast<Gemm>(blas.sgemm)(kRowMajor, left, right, p.rows, p.columns, p.depth, p.factor, *m.left,
                                         p.left_row, *m.right, p.right_row, zero, *m.dst, p.dst_row);
  }
}

using Multiply = void (const collage_blas &, const collage_product &, const collage_matrices &);

void on_one_thread(Multiply *how, void *a, void *b, void *c) {
  const collage_blas &blas = *static_cast<const collage_blas *>(a);
  const int before = blas.set_threads != nullptr ? blas.set_threads(1) : 0;
  how(blas, *static_cast<const collage_product *>(b), *static_cast<const collage_matrices *>(c));
  if (blas.set_threads != nullptr) blas.set_threads(before);
}

}  // namespace

extern "C" int collage_multiply(void *a, void *b, intptr_t, void *c) {
  on_one_thread(multiply, a, b, c);
  return 0;
}

extern "C" int collage_multiply_bf16(void *a, void *b, intptr_t, void *c) {
  if (static_cast<const collage_blas *>(a)->bf16_compute == nullptr) return -1;
  on_one_thread(multiply_bf16, a, b, c);
  return 0;
}
