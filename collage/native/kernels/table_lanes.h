// Bytes of many rows in a register: 64 rows with AVX-512, or 32 with AVX2. To be included after all other headers.

#ifndef COLLAGE_NATIVE_KERNELS_TABLE_LANES_H
#define COLLAGE_NATIVE_KERNELS_TABLE_LANES_H

#include <immintrin.h>
#include <stdint.h>

// GCC 12 warns of the undefined values in its own header (bug 105593).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#ifdef COLLAGE_AVX2
#include "table_avx2.h"
#else
#include "table_avx512.h"
#endif

#endif
