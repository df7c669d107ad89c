// Winograd's convolution; see winograd.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_WINOGRAD_H
#define COLLAGE_NATIVE_KERNELS_WINOGRAD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// One direction, rows or columns. A transposed convolution at distances of 2 is one of its own for each remainder of
// the output's place: `phases` is 2 then, and otherwise 1. Phase i makes outputs begin[i], begin[i] + phases, ...,
// count[i] of them, and the first one's window begins pad[i] elements before the input.
typedef struct {
  int64_t in, out, phases;
  int64_t begin[2], count[2], pad[2];
} collage_winograd_axis;

// Distances in floats to the next image, block of 16 channels, plane, row and pixel: multiples of 16.
typedef struct {
  int64_t batch, block, plane, row, pixel;
} collage_winograd_steps;

// A convolution, with windows at distances of 1 and no groups; the 16 channels of a block lie together. Zeros stand
// around the input as far as windows reach beyond it. Sizes count elements.
typedef struct {
  int64_t batch, in_blocks, out_blocks;      // blocks of 16 channels
  int64_t in_depth, out_depth;               // planes: 1 in two dimensions
  int64_t depth_taps, pad_depth;             // of the window
  collage_winograd_axis rows, columns;
  collage_winograd_steps from, to;
  int64_t points;                            // in each direction: 6 or 4 for windows of 3x3, 5 or 3 for 2x2
  int64_t chunk_tiles, chunk_depths;         // what is transformed and multiplied at a time
  int64_t by_channels;                       // 1: shares are blocks of output channels, 0: tiles
  int64_t shares;
  float low, high;                           // the result is clamped between
} collage_winograd_shape;

typedef struct {
  const float *src;
  // [phase of rows][phase of columns][point][panel of 2 blocks][depth tap][input channel][32], the last panel 16 wide
  // if their number is odd
  const float *weights;
  const float *bias;      // [output channel]
  const float *residual;  // added before the clamp, lies like the result; or NULL
  float *dst;
  float *scratch;         // of this share; collage_winograd_scratch floats, at a multiple of 64 bytes
} collage_winograd_buffers;

// Floats of scratch memory that each share needs.
int64_t collage_winograd_scratch(const collage_winograd_shape *shape);

// Share n of the convolution. a: collage_winograd_shape, b: collage_winograd_buffers.
int collage_winograd(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
