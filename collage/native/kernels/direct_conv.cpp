// The direct convolution of float32; see direct_conv_body.h.

#include "direct_conv.h"

#include "kernels.h"

#if COLLAGE_X86
#include <algorithm>

#include "avx512.h"

namespace {

using Item = float;

[[gnu::always_inline]] inline __m512 load(__mmask16 lanes, const Item *from) {
  return _mm512_maskz_loadu_ps(lanes, from);
}

[[gnu::always_inline]] inline void store(Item *to, __mmask16 lanes, __m512 x) { _mm512_mask_storeu_ps(to, lanes, x); }

}  // namespace

#include "direct_conv_body.h"

extern "C" int collage_direct_conv(void *a, void *b, intptr_t n, void *) { return direct_conv(a, b, n); }

#else

extern "C" int collage_direct_conv(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
