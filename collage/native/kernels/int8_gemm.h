// A product with a constant matrix that is stored in 8 bits; see int8_gemm.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_INT8_GEMM_H
#define COLLAGE_NATIVE_KERNELS_INT8_GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// dst = clamp(activation(src * (scales * weights) + bias [+ residual])) [+ residual], plain row-major matrices.
typedef struct {
  int64_t rows, depth, columns;  // a depth of 65536 at most, beyond which 32 bits may overflow
  int64_t row_chunk;       // rows that are multiplied with a panel at a time, a multiple of 8
  int64_t shares;
  int64_t by_rows;         // 1: share i has rows [i rows / shares, (i + 1) rows / shares), 0: so blocks of 16 columns
  int64_t widens;          // 1: weights become float32 and are multiplied so, 0: rows become 8 bits
  int64_t src_narrow;      // 1: src is bfloat16, 0: float32
  int64_t dst_narrow;      // the same of residual and dst
  int64_t activation;      // epilogue.h
  int64_t residual_first;  // 1: the residual is added before the activation, 0: after the clamp
  int64_t in_order;        // 1: nothing is prefetched, which is left to the processor, 0: the next panel is
  float low, high;
} collage_int8_gemm_shape;

typedef struct {
  const void *src;
  // [share of the columns][panel of 3 blocks, the last one narrower][4 k][block][16 columns][1 of the 4], zeros beyond
  // the last column and the last k. There is one share of the columns when the rows are shared.
  const int8_t *weights;
  const float *scales;   // [column], by which the weights are multiplied, zeros up to the last block's end
  const int32_t *sums;   // [column], of the column's weights, zeros up to the last block's end
  const float *bias;     // [column], zeros up to the last block's end; or NULL
  const void *residual;  // like dst, or NULL
  void *dst;
  // At a multiple of 64 bytes: 8 * 48 sums, the factors and zero points of row_chunk rows (4 bytes each), and row_chunk
  // rows of src, each of a multiple of 4 elements: bytes, or floats where the kernel widens.
  void *scratch;
} collage_int8_gemm_buffers;

// Share n of the product. a: collage_int8_gemm_shape, b: collage_int8_gemm_buffers.
int collage_int8_gemm(void *a, void *b, intptr_t n, void *c);

// Whether this processor has dot products of 8 bits (AVX512-VNNI). Without them only shapes that widen are taken.
int collage_kernels_int8(void);

#ifdef __cplusplus
}
#endif
#endif
