// Rounding the data of a convolution to 8 bits when it runs; see rounding.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_ROUNDING_H
#define COLLAGE_NATIVE_KERNELS_ROUNDING_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// One item of the data, and what becomes of it. Numbers of three are of planes, rows and columns.
typedef struct {
  int64_t channels, outputs, groups;  // the channels of the data and of the result, and the groups of both
  int64_t in[3];                      // the extents of the data
  int64_t begin[3];                   // the padding before it
  int64_t out[3];                     // the extents with the padding, and without what the convolution does not read
  int64_t from_block, from_pixel;     // elements from 16 channels to the next 16, and from a pixel to the next one
  int64_t src_narrow;                 // 1: the data is bfloat16, 0: float32
  int64_t shares;
} collage_rounding_shape;

typedef struct {
  const void *src;
  const float *factors;  // [output], by which the weights are multiplied
  const float *sums;     // [output], of the weights of that output, which are whole numbers
  const float *bias;     // [output]
  uint8_t *dst;          // [plane][row][column][channel], padding and all
  float *scales;         // [output]: a result is scales * sum of products + terms
  float *terms;          // [output]
  float *tables;         // [share][5][channels up to a multiple of 16]
} collage_rounding_buffers;

// Finds the least and the largest number of each channel in share n of the pixels, zero being one of them, and notes them
// in its tables. a: collage_rounding_shape, b: collage_rounding_buffers.
int collage_find_ranges(void *a, void *b, intptr_t n, void *c);

// Rounds share n of the rows of dst, and computes share n of scales and terms, from the ranges that all shares found.
int collage_round(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
