// Loops that do one thing only, to measure how fast the processor does it; see speed.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_SPEED_H
#define COLLAGE_NATIVE_KERNELS_SPEED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Tasks, for every processor. `a` is at a multiple of 64 bytes, and `c` is a number, not an address.

// n rounds of multiplications and additions of floats in registers. It adds the number of both to the int64_t at b, and
// writes to the 64 bytes at a.
int collage_speed_arithmetic(void *a, void *b, intptr_t n, void *c);
// Reads n bytes c times (n is a multiple of 1024), and writes to the 64 bytes at b.
int collage_speed_read(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
