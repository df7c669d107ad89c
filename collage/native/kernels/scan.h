// Whether all elements of a value are ordinary numbers; see scan.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_SCAN_H
#define COLLAGE_NATIVE_KERNELS_SCAN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  COLLAGE_SCAN_FLOAT32 = 0,
  COLLAGE_SCAN_FLOAT16 = 1,
  COLLAGE_SCAN_BFLOAT16 = 2,
  COLLAGE_SCAN_FLOAT64 = 3,
  COLLAGE_SCAN_INT32 = 4,
  COLLAGE_SCAN_UINT32 = 5,
  COLLAGE_SCAN_INT64 = 6,
  COLLAGE_SCAN_UINT64 = 7
};

// A task, for every processor. The lowest 8 bits of c are the kind of the n elements from a on. For floats of at most 32
// bits the others are the bits of the largest magnitude that is accepted, or 0 for 1e12. The int64_t at b becomes 1 when
// an element is NaN, infinite or larger than that in magnitude, or an integer beyond 2^24; otherwise it stays as it is.
// Tasks may share it.
int collage_scan_within(void *a, void *b, intptr_t n, void *c);

// A task, for every processor: the int64_t at b becomes 1 where the n bytes from a on are not those from c on.
int collage_scan_equal(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
