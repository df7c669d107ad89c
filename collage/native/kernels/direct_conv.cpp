// The direct convolution of float32; see direct_conv_body.h.

#include "direct_conv.h"

#include "kernels.h"

#if COLLAGE_X86
#include <algorithm>

#include "registers.h"

namespace {

using Item = float;

[[gnu::always_inline]] inline collage::Register load(collage::Mask lanes, const Item *from) {
  return collage::load_register(lanes, from);
}

[[gnu::always_inline]] inline void store(Item *to, collage::Mask lanes, collage::Register x) {
  collage::store_register(to, lanes, x);
}

}  // namespace

#include "direct_conv_body.h"

extern "C" int collage_direct_conv(void *a, void *b, intptr_t n, void *) { return direct_conv(a, b, n); }

#include "target_end.h"

#else

extern "C" int collage_direct_conv(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
