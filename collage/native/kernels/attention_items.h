// What the plan of attention and its kernels agree on; to be included by these alone.

#ifndef COLLAGE_NATIVE_KERNELS_ATTENTION_ITEMS_H
#define COLLAGE_NATIVE_KERNELS_ATTENTION_ITEMS_H

#include <stdint.h>

#include "attention.h"

namespace collage_attention {

using Shape = collage_attention_shape;
using Batch = collage_attention_batch;
using Item = collage_attention_item;

constexpr int64_t kBlock = COLLAGE_ATTENTION_BLOCK;
constexpr int64_t kRows = 32;      // of an item
constexpr int64_t kSpan = 4;       // blocks at a time
constexpr int64_t kSpanned = kSpan * kBlock;
constexpr int64_t kMostDim = 256;  // of a head
constexpr int64_t kLanes = 16;     // floats of a vector
constexpr int64_t kHead = 16;      // floats before a partial row's o; the first two are m and s

inline int64_t padded(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

// The floats of a row of o, and the cells of a token in a block of values.
inline int64_t value_width(const Shape &s) { return padded(s.value_dim); }

// The rows of an item that read one of its K/V heads. They follow each other.
inline int64_t rows_of_one(const Item &item) { return item.tokens * item.heads; }

}  // namespace collage_attention
#endif
