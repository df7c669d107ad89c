// One pass over a block of sums, best while it is in the caches.

#include "finish.h"

#include "kernels.h"

#if COLLAGE_X86

#include "finishing.h"

using collage::Finishing;
using collage::kLanes;

extern "C" int collage_finish(void *a, void *b, intptr_t, void *) {
  const collage_finish_shape &s = *static_cast<const collage_finish_shape *>(a);
  const collage_finish_buffers &buffers = *static_cast<const collage_finish_buffers *>(b);
  if (s.activation < 0 || s.activation >= collage::kActivations) return COLLAGE_UNAVAILABLE;
  const Finishing how{s.row, s.residual_first != 0, s.low, s.high};
  const int blocks = int((s.columns + kLanes - 1) / kLanes);
  const collage::Mask last = collage::first_lanes(s.columns - (blocks - 1) * kLanes);
  collage::kFinish[s.activation](how, {buffers.bias, buffers.residual, last}, buffers.dst, s.rows, blocks);
  return 0;
}

#include "target_end.h"

#else

extern "C" int collage_finish(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
