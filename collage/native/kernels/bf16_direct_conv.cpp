// The direct convolution of values that are stored as bfloat16; see direct_conv_body.h. Each is widened when it is
// loaded, which takes as long as loading, and half as many bytes come from the caches.

#include "direct_conv.h"

#include "kernels.h"

#if COLLAGE_X86
#include <algorithm>

#include "avx512.h"

#include "bf16.h"
#include "registers.h"

namespace {

using Item = uint16_t;

[[gnu::always_inline]] inline __m512 load(__mmask16 lanes, const Item *from) {
  return collage::load_bf16(lanes, from);
}

[[gnu::always_inline]] inline void store(Item *to, __mmask16 lanes, __m512 x) { collage::store_bf16(to, lanes, x); }

}  // namespace

#include "direct_conv_body.h"

extern "C" int collage_bf16_direct_conv(void *a, void *b, intptr_t n, void *) { return direct_conv(a, b, n); }

#include "target_end.h"

#else

extern "C" int collage_bf16_direct_conv(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
