// Direct convolution for narrow groups; see direct_conv.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_DIRECT_CONV_H
#define COLLAGE_NATIVE_KERNELS_DIRECT_CONV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Distances in floats from one batch, vector of 16 channels, plane, row and pixel to the next.
typedef struct {
  int64_t batch, vector, plane, row, pixel;
} collage_steps;

// Which inputs an output sees: those of the same channel, in the same 128 bits of a vector, in the same 256, or what is
// listed for its vector. The list is always there; the others are what is faster without it.
enum { COLLAGE_ITSELF = 0, COLLAGE_SAME_128_BITS = 1, COLLAGE_SAME_256_BITS = 2, COLLAGE_LISTED = 3 };

// Windows 1 to 7 columns wide, at a distance of 1 or 2 columns; anything goes for planes and rows.
typedef struct {
  int64_t batch, inputs, outputs;                      // channels
  int64_t reach;                                       // COLLAGE_ITSELF ...
  int64_t in[3], out[3], window[3], stride[3], pad[3]; // planes, rows, columns
  collage_steps from, to;
  int64_t blocked;                                     // 1: the last vector is stored whole, zeros beyond the channels
  int64_t by_vectors;                                  // 1: shares are vectors of outputs, 0: rows
  int64_t shares;
  float low, high;                                     // the result is clamped between
} collage_direct_conv_shape;

typedef struct {
  const float *src;
  // What vector v of outputs sees: sources begin[v] to begin[v + 1], each 4 * vector of inputs + exchange: element i of
  // its 128 bits j is multiplied for the outputs in 128 bits j ^ exchange.
  const int64_t *begin, *sources;
  const float *weights;   // [vector of outputs][plane][row][source][column][rotation: 1 or 4][16]
  const float *bias;      // [vector of outputs][16]
  const float *residual;  // like dst, added before the clamp; or NULL
  float *dst;
} collage_direct_conv_buffers;

// Share n of the convolution. a: collage_direct_conv_shape, b: collage_direct_conv_buffers.
int collage_direct_conv(void *a, void *b, intptr_t n, void *c);

// The same, where src, residual and dst are bfloat16: steps count elements of 2 bytes.
int collage_bf16_direct_conv(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
