// The steps of an LSTM after the product of all its data with the weights; see lstm.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_LSTM_H
#define COLLAGE_NATIVE_KERNELS_LSTM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Units are in blocks of 16. Gates are in ONNX's order: input, output, forget, cell.
typedef struct {
  int64_t steps, batch, hidden, directions;
  int64_t reverse;  // 1: the only direction begins at the last step. Of two directions the second one does.
  int64_t shares;   // of the blocks of all directions
} collage_lstm_shape;

typedef struct {
  const float *sums;      // [step][batch][direction][block][gate][16]: of the data, with the bias
  const float *weights;   // [direction][block][unit of the state before][gate][16]
  const float *before_h;  // [direction][batch][hidden], or NULL for zeros
  const float *before_c;  // as before_h
  float *y;               // [step][direction][batch][hidden]
  float *c;               // [direction][batch][hidden]: the cell after the last step
  float *last_h;          // [direction][batch][hidden]: the state after the last step; or NULL
} collage_lstm_buffers;

// Share n % shares of step n / shares. a: collage_lstm_shape, b: collage_lstm_buffers.
int collage_lstm(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
