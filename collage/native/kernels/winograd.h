// Winograd's convolution; see winograd.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_WINOGRAD_H
#define COLLAGE_NATIVE_KERNELS_WINOGRAD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A convolution with a kernel of (depth_taps x) 3 x 3, strides and dilations 1, no groups; all values blocked by
// 16 channels. Zeros stand around the input as far as windows reach beyond it. Sizes count elements.
typedef struct {
  int64_t batch, in_blocks, out_blocks;           // blocks of 16 channels
  int64_t in_depth, in_height, in_width;          // in_depth is 1 in two dimensions
  int64_t out_depth, out_height, out_width;
  int64_t depth_taps, pad_depth, pad_top, pad_left;
  int64_t tile;                                   // 2 or 4: outputs of a tile in each direction
  int64_t chunk_tiles, chunk_depths;              // what is transformed and multiplied at a time
  int64_t by_channels;                            // 1: shares are blocks of output channels, 0: tiles
  int64_t shares;
  float low, high;                                // the result is clamped between
} collage_winograd_shape;

typedef struct {
  const float *src;
  const float *weights;   // [point][panel of 2 blocks][depth tap][input channel][32], the last panel 16 wide if odd
  const float *bias;      // [output channel] or NULL
  const float *residual;  // added before the clamp, blocked like the result, or NULL
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
