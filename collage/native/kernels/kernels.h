// Collage's own kernels: what Python asks of them as a whole, and how their sources are built.
//
// Every kernel has the signature of a team's task (core.h): `a` is its shape and `b` its buffers, plain structs that
// Python fills in through ctypes, and `n` is the number of the share that the calling thread computes. A header for
// each kernel tells the structs.
//
// No compiler flags name a processor: a source includes lanes.h or avx512.h after everything else, target_end.h at its
// end, and puts what needs it between `#if COLLAGE_X86` and an `#else` with entries that return COLLAGE_UNAVAILABLE.
// Nothing is called before collage_kernels_isa was asked. Kernels of float32 arithmetic are built once more for AVX2, into a library of their own.

#ifndef COLLAGE_NATIVE_KERNELS_H
#define COLLAGE_NATIVE_KERNELS_H

#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)  // GCC 12, or Clang
#define COLLAGE_X86 1
#else
#define COLLAGE_X86 0
#endif

// Whether the compiler (GCC 11 and its assembler) knows AMX, and the system can be asked for it.
#if COLLAGE_X86 && !defined(COLLAGE_AVX2) && defined(__linux__) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>)
#define COLLAGE_AMX 1
#endif
#endif
#ifndef COLLAGE_AMX
#define COLLAGE_AMX 0
#endif

// The compiler's own vectors in functions for AVX-512 have 512 bits. Clang's have by themselves.
#ifdef __clang__
#define COLLAGE_WIDE ""
#else
#define COLLAGE_WIDE ",prefer-vector-width=512"
#endif

#if COLLAGE_X86
#include "cpu.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Status of a kernel that was built for another processor, or whose shape is none of those it knows; and of one that reads
// an index out of range. launch.py has the second one, too.
enum { COLLAGE_UNAVAILABLE = -1, COLLAGE_OUT_OF_RANGE = -2 };

// To be counted up, here and in kernel_library.py, when a struct, the order of weights or the speed of a kernel changes:
// a library of another revision is not used, nor are measurements and packed kernels of another one.
#define COLLAGE_KERNELS_REVISION 17

int collage_kernels_revision(void);

// What the kernels can use here: 512 for AVX-512 (F, VL, BW and DQ), 256 for AVX2 and FMA, or 0 when none of them can run.
int collage_kernels_isa(void);

#ifdef __cplusplus
}
#endif
#endif
