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

// Windows 1, 3, 5 or 7 columns wide, at a distance of 1 or 2 columns; anything goes for planes and rows.
typedef struct {
  int64_t batch, inputs, outputs;                      // channels
  int64_t rotations;  // 1: each channel sees itself, 4: those of the same 128 bits, of two (exchanges: 2) or of all (4)
  int64_t exchanges;
  int64_t blocks;                                      // vectors of inputs that a vector of outputs sees
  int64_t in[3], out[3], window[3], stride[3], pad[3]; // planes, rows, columns
  collage_steps from, to;
  int64_t blocked;                                     // 1: the last vector is stored whole, zeros beyond the channels
  int64_t by_vectors;                                  // 1: shares are vectors of outputs, 0: rows
  int64_t shares;
  float low, high;                                     // the result is clamped between
} collage_direct_conv_shape;

typedef struct {
  const float *src;
  const int64_t *first;   // [vector of outputs]: the first vector of inputs that it sees
  const float *weights;   // [vector of outputs][plane][row][block][exchange][column][rotation][16]
  const float *bias;      // [vector of outputs][16]
  const float *residual;  // like dst, added before the clamp; or NULL
  float *dst;
} collage_direct_conv_buffers;

// Share n of the convolution. a: collage_direct_conv_shape, b: collage_direct_conv_buffers.
int collage_direct_conv(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
