// A product with a constant matrix that is stored as bfloat16; see bf16_gemm.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_BF16_GEMM_H
#define COLLAGE_NATIVE_KERNELS_BF16_GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// dst = clamp(activation(src * weights + bias [+ residual])) [+ residual], plain row-major matrices.
typedef struct {
  int64_t rows, depth, columns;
  int64_t row_chunk;       // rows that are multiplied with a panel at a time
  int64_t shares;
  int64_t by_rows;         // 1: share i has rows [i rows / shares, (i + 1) rows / shares), 0: so blocks of 16 columns
  int64_t widens;          // 1: weights become float32 and are multiplied so, 0: dot products of pairs of bfloat16
  int64_t src_narrow;      // 1: src is bfloat16, 0: float32
  int64_t dst_narrow;      // the same of residual and dst
  int64_t activation;      // epilogue.h
  int64_t residual_first;  // 1: the residual is added before the activation, 0: after the clamp
  int64_t in_order;        // 1: nothing is prefetched, which is left to the processor, 0: the next panel is
  float low, high;
} collage_bf16_gemm_shape;

typedef struct {
  const void *src;
  // [share of the columns][panel of 3 blocks, the last one narrower][pair of k][block][16 columns][2 of the pair], zeros
  // beyond the last column and the last k. There is one share of the columns when the rows are shared.
  const uint16_t *weights;
  const float *bias;     // [column], zeros up to the last block's end; or NULL
  const void *residual;  // like dst, or NULL
  void *dst;
  // At a multiple of 64 bytes: 8 * 48 sums, then row_chunk rows of src, each of an even number of floats.
  float *scratch;
} collage_bf16_gemm_buffers;

// Share n of the product. a: collage_bf16_gemm_shape, b: collage_bf16_gemm_buffers.
int collage_bf16_gemm(void *a, void *b, intptr_t n, void *c);

// Whether this processor has dot products of bfloat16. Without them only shapes that widen are taken.
int collage_kernels_bf16(void);

#ifdef __cplusplus
}
#endif
#endif
