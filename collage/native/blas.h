// Matrix products of a BLAS library as tasks of a team (core.h). The library's functions are given as addresses, so
// that nothing is linked.

#ifndef COLLAGE_NATIVE_BLAS_H
#define COLLAGE_NATIVE_BLAS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A library with 32-bit integers (LP64).
typedef struct {
  void *sgemm, *sgemm_compute, *sgemm_batch;  // cblas_...; MKL's
  int (*set_threads)(int);                    // of the calling thread, returns what it was; or NULL: always one
  void *bf16_compute;                         // cblas_gemm_bf16bf16f32_compute, or NULL
} collage_blas;

enum { COLLAGE_PLAIN = 0, COLLAGE_PACKED = 1, COLLAGE_BATCH = 2 };

// dst = factor * left * right, row-major. A transposed operand lies as its transpose; `..._row` is the distance of
// rows as they lie, in floats. PACKED: the right operand is what the library's sgemm_pack made.
typedef struct {
  int32_t kind;
  int32_t rows, columns, depth;
  int32_t left_row, right_row, dst_row;
  int32_t left_transposed, right_transposed;
  int32_t count;  // of matrices; 1 unless the kind is BATCH
  float factor;
} collage_product;

typedef struct {
  const float **left;
  const float **right;
  float **dst;
} collage_matrices;

// A task. a: collage_blas, b: collage_product, c: collage_matrices.
int collage_multiply(void *a, void *b, intptr_t n, void *c);

// The same for one matrix of bfloat16 on the left, whose elements `left_row` counts, and on the right what
// gemm_bf16bf16f32_pack made. The result is float32.
int collage_multiply_bf16(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
