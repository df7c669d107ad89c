// What happens to the sums of a product that somebody else computed; see finish.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_FINISH_H
#define COLLAGE_NATIVE_KERNELS_FINISH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// dst = clamp(activation(dst + bias [+ residual])) [+ residual], in rows of `columns` floats at distances of `row`.
typedef struct {
  int64_t rows, columns, row;
  int64_t activation;      // epilogue.h
  int64_t residual_first;  // 1: the residual is added before the activation, 0: after the clamp
  float low, high;
} collage_finish_shape;

typedef struct {
  const float *bias;      // [column], or NULL
  const float *residual;  // like dst, or NULL
  float *dst;
} collage_finish_buffers;

// A task. a: collage_finish_shape, b: collage_finish_buffers.
int collage_finish(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
