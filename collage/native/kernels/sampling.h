// The choice of tokens from logits; see sampling.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_SAMPLING_H
#define COLLAGE_NATIVE_KERNELS_SAMPLING_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// How the token of a row is chosen. `scale` is 1 / temperature, or 0 for the likeliest token. The likeliest `top_k`
// tokens are kept (0: all), of these the fewest whose probabilities sum to `top_p` at least, and of these the ones that
// are at least `min_p` times as likely as the likeliest one. One of them is drawn by `draw`, which is from 0 to below 1.
typedef struct {
  double scale, top_p, min_p, draw;
  int64_t top_k;
} collage_sampling_choice;

// `rows` has the address of each of `count` rows of `vocabulary` logits. `tokens` gets the choices, or
// COLLAGE_SAMPLING_NONE where a logit is NaN, infinite, or all are minus infinity. `weights` has for each share room for
// as many floats as logits, rounded up to whole spans.
enum { COLLAGE_SAMPLING_SPAN = 256, COLLAGE_SAMPLING_NONE = -1, COLLAGE_SAMPLING_NO_MEMORY = 1 };
typedef struct {
  const float *const *rows;
  const collage_sampling_choice *choices;
  int64_t *tokens;
  float *weights;
  int64_t count, vocabulary, shares;
} collage_sampling_batch;

// A task, for every processor: share n of the rows of the batch at b.
int collage_sampling_choose(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
