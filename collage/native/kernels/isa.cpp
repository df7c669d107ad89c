#include "kernels.h"

extern "C" int collage_kernels_revision(void) { return COLLAGE_KERNELS_REVISION; }

extern "C" int collage_kernels_isa(void) {
#if COLLAGE_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma"))
    return 512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 256;
#endif
  return 0;
}
