// The largest magnitude of many floats, as an integer: without the sign, floats are ordered like their bits, and
// infinities and NaN come after all numbers.

#include "scan.h"

#include <string.h>

#include "kernels.h"

namespace {

// Signed integers, since AVX2 compares no others of 64 bits: without the sign they are the same.
template <typename Bits>
__attribute__((always_inline)) inline bool beyond(const void *first, intptr_t n, Bits mask, Bits limit) {
  const Bits *const bits = static_cast<const Bits *>(first);
  Bits most = 0;
  for (intptr_t i = 0; i < n; ++i) {
    const Bits magnitude = bits[i] & mask;
    most = magnitude > most ? magnitude : most;
  }
  return most > limit;
}

// Moved up by the limit, integers that are small in magnitude are at most twice that; all others, too, are larger.
template <typename Unsigned>
__attribute__((always_inline)) inline bool far(const void *first, intptr_t n, Unsigned below) {
  const Unsigned *const values = static_cast<const Unsigned *>(first);
  bool found = false;
  for (intptr_t i = 0; i < n; ++i) found |= values[i] + below > (Unsigned{1} << 24) + below;
  return found;
}

// The limits are the bits of the largest value up to 1e12, which for float16 is that of all numbers, or those that come
// with the kind.
__attribute__((always_inline)) inline int scan(const void *first, intptr_t n, intptr_t about) {
  const intptr_t given = about >> 8;
  switch (about & 0xff) {
    case COLLAGE_SCAN_FLOAT32:
      return beyond<int32_t>(first, n, 0x7fffffff, given ? static_cast<int32_t>(given) : 0x5368d4a5);
    case COLLAGE_SCAN_FLOAT16:
      return beyond<int16_t>(first, n, 0x7fff, given ? static_cast<int16_t>(given) : 0x7bff);
    case COLLAGE_SCAN_BFLOAT16:
      return beyond<int16_t>(first, n, 0x7fff, given ? static_cast<int16_t>(given) : 0x5368);
    case COLLAGE_SCAN_FLOAT64: return beyond<int64_t>(first, n, 0x7fffffffffffffff, 0x426d1a94a2000000);
    case COLLAGE_SCAN_INT32: return far<uint32_t>(first, n, uint32_t{1} << 24);
    case COLLAGE_SCAN_UINT32: return far<uint32_t>(first, n, 0);
    case COLLAGE_SCAN_INT64: return far<uint64_t>(first, n, uint64_t{1} << 24);
    case COLLAGE_SCAN_UINT64: return far<uint64_t>(first, n, 0);
    default: return COLLAGE_UNAVAILABLE;
  }
}

// The compiler makes vectors of each, as wide as it may.
int scan_any(const void *first, intptr_t n, intptr_t about) { return scan(first, n, about); }

using Scan = int (*)(const void *, intptr_t, intptr_t);

#if COLLAGE_X86

__attribute__((target("avx2"))) int scan_256(const void *first, intptr_t n, intptr_t about) {
  return scan(first, n, about);
}

__attribute__((target("avx512f,avx512bw,avx512vl" COLLAGE_WIDE)))
int scan_512(const void *first, intptr_t n, intptr_t about) {
  return scan(first, n, about);
}

Scan widest() {
  if (collage_kernels_isa() == 512) return scan_512;
  return collage_kernels_isa() == 256 ? scan_256 : scan_any;
}

#else

Scan widest() { return scan_any; }

#endif

}  // namespace

extern "C" int collage_scan_within(void *a, void *b, intptr_t n, void *c) {
  static const Scan run = widest();
  const int found = run(a, n, reinterpret_cast<intptr_t>(c));
  if (found > 0) __atomic_store_n(static_cast<int64_t *>(b), 1, __ATOMIC_RELAXED);
  return found < 0 ? found : 0;
}

extern "C" int collage_scan_equal(void *a, void *b, intptr_t n, void *c) {
  if (memcmp(a, c, static_cast<size_t>(n)) != 0) __atomic_store_n(static_cast<int64_t *>(b), 1, __ATOMIC_RELAXED);
  return 0;
}
