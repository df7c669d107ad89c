// A product with a constant matrix of bfloat16 on the processor's matrix unit; see amx_gemm.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_AMX_GEMM_H
#define COLLAGE_NATIVE_KERNELS_AMX_GEMM_H

#include "bf16_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

// Share n of the product. a: collage_bf16_gemm_shape that does not widen, b: collage_bf16_gemm_buffers, with the same
// order of the weights. At `scratch`, a multiple of 64 bytes: 32 * 48 sums, 16 * 48 floats for the last pairs of k of a
// panel, then row_chunk rows of src, each of a multiple of 16 floats.
int collage_amx_gemm(void *a, void *b, intptr_t n, void *c);

// Whether this processor multiplies tiles of bfloat16 (AMX), and the system lets this process. Asks the system for that.
int collage_kernels_amx(void);

#ifdef __cplusplus
}
#endif
#endif
