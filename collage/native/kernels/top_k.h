// The largest or the smallest numbers of each row, in order, and their places; see top_k.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_TOP_K_H
#define COLLAGE_NATIVE_KERNELS_TOP_K_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COLLAGE_MOST_TOP_K = 128 };

typedef struct {
  int64_t rows, columns;
  int64_t chosen;    // of each row, at most COLLAGE_MOST_TOP_K
  int64_t smallest;  // 1: the smallest ones, 0: the largest ones
  int64_t shares;    // of the rows
} collage_top_k_shape;

typedef struct {
  const float *data;  // [row][column]
  float *values;      // [row][chosen], or NULL
  int64_t *places;    // [row][chosen], or NULL
} collage_top_k_buffers;

// a: collage_top_k_shape, b: collage_top_k_buffers.
int collage_top_k(void *a, void *b, intptr_t share, void *c);

#ifdef __cplusplus
}
#endif
#endif
