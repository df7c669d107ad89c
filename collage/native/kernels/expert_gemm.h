// The products of a mixture of experts: each row times the matrix that it chooses; see expert_gemm.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_EXPERT_GEMM_H
#define COLLAGE_NATIVE_KERNELS_EXPERT_GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// dst[row] = src[row] * weights[choice[row]], plain row-major matrices.
typedef struct {
  int64_t rows, depth, columns, experts;
  int64_t row_chunk, slice;  // rows of an expert and depth that are multiplied at a time
  int64_t shares;            // share i has blocks [i blocks / shares, (i + 1) blocks / shares) of 16 columns
  int64_t in_order;          // 1: nothing is prefetched, which is left to the processor, 0: the next panel is
} collage_expert_gemm_shape;

typedef struct {
  const float *src;
  const int64_t *choice;  // [row]: the expert, of whom negative ones count from the end
  const float *weights;   // [expert], as in gemm.h; or two of bfloat16 or four of 8 bits in the place of a float
  const float *scales;    // [expert][column], by which those of 8 bits are multiplied, up to the last block's end
  float *dst;
  void *scratch;          // of this share; collage_expert_gemm_scratch bytes, at a multiple of 64
} collage_expert_gemm_buffers;

// Bytes of scratch memory that each share needs.
int64_t collage_expert_gemm_scratch(const collage_expert_gemm_shape *shape);

// The same of collage_expert_gemm_bf16 and collage_expert_gemm_int8.
int64_t collage_expert_gemm_bf16_scratch(const collage_expert_gemm_shape *shape);
int64_t collage_expert_gemm_int8_scratch(const collage_expert_gemm_shape *shape);

// Share n of the products, or COLLAGE_OUT_OF_RANGE, and nothing is written, where a row chooses an expert that is not
// there. a: collage_expert_gemm_shape, b: collage_expert_gemm_buffers.
int collage_expert_gemm(void *a, void *b, intptr_t n, void *c);

// The same with weights of bfloat16, which lie as in bf16_gemm.h and are widened. The depth is not sliced.
int collage_expert_gemm_bf16(void *a, void *b, intptr_t n, void *c);

// The same with weights of 8 bits, which lie as in int8_gemm.h.
int collage_expert_gemm_int8(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
