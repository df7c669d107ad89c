// Convolution of few input channels; see shallow_conv.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_SHALLOW_CONV_H
#define COLLAGE_NATIVE_KERNELS_SHALLOW_CONV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Windows of three dimensions (planes, rows, columns) on a plain input; output channels in multiples of 16.
//
// `planes` planes of the result are computed together, from `seen` planes of the input, which become `points`
// planes by the matrix `before`: [points][seen]. Each is convolved by itself and the results become `planes` planes
// by `after`: [planes][points]. With Winograd's matrices each plane's window has rows and columns only; without,
// planes is 1, before is the identity, and after sums.
typedef struct {
  int64_t batch, channels, out_blocks;     // blocks of 16 output channels
  int64_t in[3], out[3];                   // planes, rows, columns
  int64_t rows, columns;                   // of the window
  int64_t stride[3], pad[3];               // distances are 1 or 2 columns
  int64_t planes, seen, points;
  int64_t row_chunk;                       // rows of the result that are computed together
  int64_t to_batch, to_block, to_plane, to_row, to_pixel;  // distances in floats in the result
  int64_t shares;
  float low, high;                         // the result is clamped between
} collage_shallow_conv_shape;

typedef struct {
  const float *src;
  const float *weights;   // [point][panel of 2 blocks][channel][row][column][32], the last panel 16 wide if odd
  const float *before;
  const float *after;
  const float *bias;      // [output channel]
  const float *residual;  // like dst, added before the clamp; or NULL
  float *dst;
  float *scratch;         // of this share; collage_shallow_conv_scratch floats, at a multiple of 64 bytes
} collage_shallow_conv_buffers;

// Floats of scratch memory that each share needs.
int64_t collage_shallow_conv_scratch(const collage_shallow_conv_shape *shape);

// Share n of the convolution. a: collage_shallow_conv_shape, b: collage_shallow_conv_buffers.
int collage_shallow_conv(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
