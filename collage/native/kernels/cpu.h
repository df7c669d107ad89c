// The instruction sets that this processor has and the system lets programs use. To be included before lanes.h.
//
// __builtin_cpu_supports would do, but Clang's needs a run-time library that wheels are built without.

#ifndef COLLAGE_NATIVE_KERNELS_CPU_H
#define COLLAGE_NATIVE_KERNELS_CPU_H

#include <cpuid.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace collage {

struct Cpu {
  bool avx2 = false;    // with FMA
  bool bmi2 = false;
  bool avx512 = false;  // F, VL, BW and DQ, with FMA
  bool vbmi = false, vnni = false, bf16 = false;  // of AVX-512
  bool amx = false;     // tiles, and their products of bfloat16
};

inline Cpu asked_cpu() {
  constexpr uint64_t kWide = 0x6, kWidest = 0xe6, kTiles = 0x60000;  // states of registers that the system saves
  Cpu found;
  unsigned a, b, c, d;
  const auto bit = [](unsigned bits, int at) { return (bits >> at & 1) != 0; };
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27) || !bit(c, 12)) return found;
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const uint64_t saved = uint64_t(high) << 32 | low;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  const unsigned leaves = a;
  found.avx2 = (saved & kWide) == kWide && bit(b, 5);
  found.bmi2 = bit(b, 8);
  found.avx512 = (saved & kWidest) == kWidest && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  found.vbmi = found.avx512 && bit(c, 1);
  found.vnni = found.avx512 && bit(c, 11);
  const bool tiles = (saved & kTiles) == kTiles && bit(d, 22) && bit(d, 24);
  if (leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) found.bf16 = found.avx512 && bit(a, 5);
  found.amx = tiles && found.bf16;
  return found;
}

// COLLAGE_ISA=avx2 leaves out what AVX-512 has, so that the kernels for other processors can be tried.
inline const Cpu &cpu() {
  static const Cpu found = [] {
    Cpu all = asked_cpu();
    const char *const isa = getenv("COLLAGE_ISA");
    if (isa != nullptr && strcmp(isa, "avx2") == 0)
      all.avx512 = all.vbmi = all.vnni = all.bf16 = all.amx = false;
    return all;
  }();
  return found;
}

}  // namespace collage

#endif
