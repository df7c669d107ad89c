// From here on the compiler may use AVX-512, whatever its flags say. To be included after all other headers.

#ifndef COLLAGE_NATIVE_KERNELS_AVX512_H
#define COLLAGE_NATIVE_KERNELS_AVX512_H

#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#endif

#endif
