// Transposed convolution to few channels; see narrow_transposed.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_NARROW_TRANSPOSED_H
#define COLLAGE_NATIVE_KERNELS_NARROW_TRANSPOSED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Windows of 4x4 at distances of 2, to at most 4 channels in the plain layout. Even and odd outputs of a direction
// are one phase each: output 2 j + phase is made of the inputs j - pad[phase] and the next one; pads are 0 or 1.
typedef struct {
  int64_t batch, inputs, outputs;               // channels; inputs in multiples of 16
  int64_t in[2], out[2];                        // rows, columns
  int64_t row_pad[2], column_pad[2];
  int64_t from_batch, from_block, from_row, from_pixel;  // distances in floats in the input
  int64_t row_chunk;                            // pairs of rows of the result that are computed together
  int64_t activation;                           // epilogue.h
  int64_t shares;
  float low, high;                              // the result is clamped between
} collage_narrow_transposed_shape;

typedef struct {
  const float *src;
  const float *weights;  // [row phase][input][row][column phase][column][output]
  const float *bias;     // [output]
  float *dst;
  float *scratch;        // of this share; collage_narrow_transposed_scratch floats, at a multiple of 64 bytes
} collage_narrow_transposed_buffers;

// Floats of scratch memory that each share needs.
int64_t collage_narrow_transposed_scratch(const collage_narrow_transposed_shape *shape);

// Share n of the convolution. a: collage_narrow_transposed_shape, b: collage_narrow_transposed_buffers.
int collage_narrow_transposed(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
