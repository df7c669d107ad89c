// The speed of arithmetic on floats, and of reading: loops over vectors as wide as the processor has them.

#include "speed.h"

#include <string.h>

#include "kernels.h"

namespace {

template <int BYTES>
struct Vector {
  typedef float Of __attribute__((vector_size(BYTES), may_alias));
};

// Each accumulator waits for itself only. Four cycles of latency and two units need eight of them.
template <int BYTES, int ACCUMULATORS>
__attribute__((always_inline)) inline int arithmetic(void *a, void *b, intptr_t n) {
  using V = typename Vector<BYTES>::Of;
  V sum[ACCUMULATORS], factor = V{} + 0.999f, term = V{} + 0.001f;
  for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = V{} + float(i);
  for (intptr_t round = 0; round < n; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = sum[i] * factor + term;
#pragma GCC unroll 16
    for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = sum[i] * factor + term;
  }
  V all = sum[0];
  for (int i = 1; i < ACCUMULATORS; ++i) all += sum[i];
  memcpy(a, &all, sizeof all);
  *static_cast<int64_t *>(b) += 4 * ACCUMULATORS * (BYTES / 4) * int64_t(n);
  return 0;
}

template <int BYTES>
__attribute__((always_inline)) inline int read(const void *a, void *b, intptr_t n, intptr_t times) {
  using V = typename Vector<BYTES>::Of;
  constexpr int kAtOnce = 8;
  const V *const from = static_cast<const V *>(a);
  V sum[kAtOnce] = {};
  for (intptr_t time = 0; time < times; ++time) {
    for (intptr_t i = 0; i < n / BYTES; i += kAtOnce)
#pragma GCC unroll 8
      for (int j = 0; j < kAtOnce; ++j) sum[j] += from[i + j];
    __asm__ volatile("" ::: "memory");
  }
  for (int j = 1; j < kAtOnce; ++j) sum[0] += sum[j];
  memcpy(b, &sum[0], sizeof sum[0]);
  return 0;
}

struct Loops {
  int (*arithmetic)(void *, void *, intptr_t);
  int (*read)(const void *, void *, intptr_t, intptr_t);
};

int arithmetic_any(void *a, void *b, intptr_t n) { return arithmetic<16, 8>(a, b, n); }
int read_any(const void *a, void *b, intptr_t n, intptr_t times) { return read<16>(a, b, n, times); }

#if COLLAGE_X86

#define COLLAGE_256 __attribute__((target("avx2,fma")))
#define COLLAGE_512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prefer-vector-width=512")))

COLLAGE_256 int arithmetic_256(void *a, void *b, intptr_t n) { return arithmetic<32, 12>(a, b, n); }
COLLAGE_256 int read_256(const void *a, void *b, intptr_t n, intptr_t times) { return read<32>(a, b, n, times); }

COLLAGE_512 int arithmetic_512(void *a, void *b, intptr_t n) { return arithmetic<64, 16>(a, b, n); }
COLLAGE_512 int read_512(const void *a, void *b, intptr_t n, intptr_t times) { return read<64>(a, b, n, times); }

Loops widest() {
  if (collage_kernels_isa() == 512) return {arithmetic_512, read_512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {arithmetic_256, read_256};
  return {arithmetic_any, read_any};
}

#else

Loops widest() { return {arithmetic_any, read_any}; }

#endif

const Loops &loops() {
  static const Loops found = widest();
  return found;
}

}  // namespace

extern "C" {

int collage_speed_arithmetic(void *a, void *b, intptr_t n, void *) { return loops().arithmetic(a, b, n); }

int collage_speed_read(void *a, void *b, intptr_t n, void *c) {
  return loops().read(a, b, n, reinterpret_cast<intptr_t>(c));
}

}  // extern "C"
