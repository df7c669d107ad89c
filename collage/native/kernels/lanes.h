// Sixteen floats, as the sources of kernels see them: one register of AVX-512, or two of AVX2.
//
// Kernels of float32 arithmetic are built twice (setup.py): into one library for AVX-512, and with COLLAGE_AVX2 into another one for
// AVX2. Their layouts are the same in both, in blocks of 16 channels or columns. To be included after all other headers.

#ifndef COLLAGE_NATIVE_KERNELS_LANES_H
#define COLLAGE_NATIVE_KERNELS_LANES_H

#include <immintrin.h>
#include <stdint.h>

namespace collage {

constexpr intptr_t kLanes = 16;

using Mask = __mmask16;  // bit i: there is a lane i
constexpr Mask kAllLanes = 0xffff;

// The first lanes, at most 16.
inline Mask first_lanes(int64_t count) { return count >= kLanes ? kAllLanes : Mask((1u << count) - 1); }

}  // namespace collage

#ifdef COLLAGE_AVX2
#include "lanes_avx2.h"
#else
#include "lanes_avx512.h"
#endif

#endif
