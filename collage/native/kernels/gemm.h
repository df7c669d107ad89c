// A product with a constant matrix; see gemm.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_GEMM_H
#define COLLAGE_NATIVE_KERNELS_GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// dst = clamp(activation(src * weights + bias [+ residual])) [+ residual], plain row-major matrices.
typedef struct {
  int64_t rows, depth, columns;
  int64_t row_chunk, slice;  // rows and depth that are multiplied at a time
  int64_t shares;
  int64_t by_rows;           // 1: share i has rows [i rows / shares, (i + 1) rows / shares), 0: so blocks of 16 columns
  int64_t activation;        // epilogue.h
  int64_t residual_first;    // 1: the residual is added before the activation, 0: after the clamp
  int64_t in_order;          // 1: nothing is prefetched, which is left to the processor, 0: the next panel is
  float low, high;
} collage_gemm_shape;

typedef struct {
  const float *src;
  // [share of the columns][slice][panel of 3 blocks, the last one narrower][k][16 per block], zeros beyond the last
  // column. There is one share of the columns when the rows are shared.
  const float *weights;
  const float *bias;      // [column], zeros up to the last block's end; or NULL
  const float *residual;  // like dst, or NULL
  float *dst;
} collage_gemm_buffers;

// Share n of the product. a: collage_gemm_shape, b: collage_gemm_buffers.
int collage_gemm(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
