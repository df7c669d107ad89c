// Parts of a range of rows or columns.

#ifndef COLLAGE_NATIVE_KERNELS_RANGE_H
#define COLLAGE_NATIVE_KERNELS_RANGE_H

#include <stdint.h>

namespace collage {

struct Range {
  int64_t begin, end;
};

inline Range part(Range whole, int64_t which, int64_t parts) {
  const int64_t size = whole.end - whole.begin;
  return {whole.begin + size * which / parts, whole.begin + size * (which + 1) / parts};
}

// The least number of parts that have `most` at most.
inline int64_t parts(Range whole, int64_t most) { return (whole.end - whole.begin + most - 1) / most; }

}  // namespace collage
#endif
