// Matrix products and pointwise convolutions with seven eighths of the multiplications; see strassen.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_STRASSEN_H
#define COLLAGE_NATIVE_KERNELS_STRASSEN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Distances in floats to the next image, block of 16 channels, plane, row and pixel; in the input, to those that the
// next ones of the result are made of.
typedef struct {
  int64_t batch, block, plane, row, pixel;
} collage_strassen_steps;

// clamp(activation(src * weights + bias [+ residual])) [+ residual] for each pixel, a row of `2 in_blocks` blocks of
// 16 channels. A plain matrix is one image of one plane of one row.
typedef struct {
  int64_t batch, in_blocks, out_blocks;  // blocks in each half of the channels
  int64_t out[3];                        // planes, rows, columns
  collage_strassen_steps from, to;
  int64_t row_chunk;                     // pixels in each half of what is multiplied at a time; at most 128
  int64_t slice;                         // blocks of each half of the input channels that are multiplied at a time
  int64_t by_channels;                   // 1: shares are panels of output channels, 0: pixels
  int64_t shares;
  int64_t activation;                    // epilogue.h
  int64_t residual_first;                // 1: the residual is added before the activation, 0: after the clamp
  float low, high;
} collage_strassen_shape;

typedef struct {
  const float *src;
  const float *weights;   // [slice][panel of 2 blocks of half the columns][product][k of half the depth][32], the last
                          // panel 16 wide if their number is odd; the products' factors are told in strassen.cpp
  const float *depth_scales;   // [input channel], powers of two that the input is multiplied with; or NULL
  const float *column_scales;  // [output channel], powers of two that the products are multiplied with
  const float *bias;      // [output channel]
  const float *residual;  // lies like dst; or NULL
  float *dst;
  float *scratch;         // of this share; collage_strassen_scratch floats, at a multiple of 64 bytes
} collage_strassen_buffers;

// Floats of scratch memory that each share needs.
int64_t collage_strassen_scratch(const collage_strassen_shape *shape);

// Share n of the product. a: collage_strassen_shape, b: collage_strassen_buffers.
int collage_strassen(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
