// What products with a constant matrix of bfloat16 have in common: panels of 48 columns, whose sums are float32 in
// scratch memory until they are finished. To be included after all other headers.

#ifndef COLLAGE_NATIVE_KERNELS_BF16_PANELS_H
#define COLLAGE_NATIVE_KERNELS_BF16_PANELS_H

#include "bf16_gemm.h"
#include "epilogue.h"
#include "streamed.h"
#include "tile.h"

namespace collage {

// Bias, residual, activation and clamp of the sums of some rows and of `columns` columns from `column` on.
template <Activation ACTIVATION>
void finish_rows(const collage_bf16_gemm_shape &s, const collage_bf16_gemm_buffers &b, Range rows, int64_t column,
                 int64_t columns) {
  const Floats low = broadcast(s.low), high = broadcast(s.high), zero = zeros();
  for (int64_t j = 0; j < columns; j += kLanes) {
    const Mask mask = first_lanes(columns - j);
    const Floats bias = b.bias == nullptr ? zero : load(mask, b.bias + column + j);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const intptr_t at = row * s.columns + column + j;
      Floats x = load(b.scratch + (row - rows.begin) * kWide + j) + bias;
      const Floats residual = b.residual == nullptr ? zero : load(b.residual, s.dst_narrow, at, mask);
      if (s.residual_first) x += residual;
      x = clamp(activate(x, ACTIVATION), low, high);
      if (!s.residual_first) x += residual;
      store(b.dst, s.dst_narrow, at, mask, x);
    }
  }
}

using Finish = void (*)(const collage_bf16_gemm_shape &, const collage_bf16_gemm_buffers &, Range, int64_t, int64_t);

constexpr Finish kEndings[] = {finish_rows<kNone>,    finish_rows<kGelu>,  finish_rows<kTanh>,
                               finish_rows<kSigmoid>, finish_rows<kSwish>, finish_rows<kGeluTanh>};
constexpr int64_t kEndingCount = sizeof kEndings / sizeof *kEndings;

// The same, with the shape's activation. The sums begin at `b.scratch`, kWide a row.
inline void finish_panel(const collage_bf16_gemm_shape &s, const collage_bf16_gemm_buffers &b, Range rows,
                         int64_t column, int64_t columns) {
  kEndings[s.activation](s, b, rows, column, columns);
}

// Rows of the data, copied to `to` in the dtype that they are multiplied in: float32 where weights are widened, bfloat16
// otherwise. Each row has `row` elements there, of which those beyond the depth are zeros.
inline const void *copied_rows(const collage_bf16_gemm_shape &s, const collage_bf16_gemm_buffers &b, Range rows,
                               intptr_t row, float *to) {
  for (int64_t i = rows.begin; i < rows.end; ++i)
    for (intptr_t k = 0; k < row; k += kLanes) {
      const Mask taken = first_lanes(k < s.depth ? s.depth - k : 0), given = first_lanes(row - k);
      const Floats x = load(b.src, s.src_narrow, i * s.depth + k, taken);
      store(to, !s.widens, (i - rows.begin) * row + k, given, x);
    }
  return to;
}

}  // namespace collage
#endif
