#include "kernels.h"

extern "C" int collage_kernels_revision(void) { return COLLAGE_KERNELS_REVISION; }

extern "C" int collage_kernels_isa(void) {
#if COLLAGE_X86
  return collage::cpu().avx512 ? 512 : collage::cpu().avx2 ? 256 : 0;
#else
  return 0;
#endif
}
