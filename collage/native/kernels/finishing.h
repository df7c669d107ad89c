// Bias, residual, activation and clamp of sums that lie in rows.

#ifndef COLLAGE_NATIVE_KERNELS_FINISHING_H
#define COLLAGE_NATIVE_KERNELS_FINISHING_H

#include "epilogue.h"
#include "tile.h"

namespace collage {

struct Finishing {
  int64_t row;          // distance of rows, in floats
  bool residual_first;  // before the activation, or after the clamp
  float low, high;
};

// Where that comes from, for one block of columns after the other.
struct Ending {
  const float *bias;      // of these columns, or nullptr
  const float *residual;  // like the sums, or nullptr
  Mask mask;              // columns of the last block
};

template <Activation ACTIVATION>
void finish(const Finishing &how, const Ending &end, float *c, int64_t rows, int wide) {
  const Floats low = broadcast(how.low), high = broadcast(how.high), zero = zeros();
  for (int j = 0; j < wide; ++j) {
    const Mask mask = j == wide - 1 ? end.mask : kAllLanes;
    const Floats bias = end.bias == nullptr ? zero : load(mask, end.bias + j * kLanes);
    for (int64_t i = 0; i < rows; ++i) {
      const intptr_t at = i * how.row + j * kLanes;
      Floats x = load(mask, c + at) + bias;
      const Floats residual = end.residual == nullptr ? zero : load(mask, end.residual + at);
      if (how.residual_first) x += residual;
      x = clamp(activate(x, ACTIVATION), low, high);
      if (!how.residual_first) x += residual;
      store(c + at, mask, x);
    }
  }
}

using Finish = void (*)(const Finishing &, const Ending &, float *, int64_t, int);

constexpr Finish kFinish[] = {finish<kNone>,    finish<kGelu>,  finish<kTanh>,
                              finish<kSigmoid>, finish<kSwish>, finish<kGeluTanh>};
constexpr int64_t kActivations = sizeof kFinish / sizeof *kFinish;

}  // namespace collage
#endif
