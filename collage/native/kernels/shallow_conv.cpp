// Convolution of few input channels, such as a network's first, with Winograd's algorithm over the planes of three
// dimensions (one-dimensional: F(4, 7) needs 10 products where 28 are direct).
//
// A chunk of rows at a time, in memory that stays in the L2 cache: the input's rows with their padding, transformed
// over planes; products, with pixels as rows and output channels as columns of the register tile; the transform back.

#include "shallow_conv.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "epilogue.h"
#include "tile.h"

namespace {

using namespace collage;

constexpr int kPixels = tile_rows(14);
constexpr int kPanel = 2;    // blocks of columns of it
constexpr int64_t kMostPlanes = 4, kMostSeen = 16;

using Shape = collage_shallow_conv_shape;
using Buffers = collage_shallow_conv_buffers;

int64_t ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Floats of one padded row, and rows of a chunk.
int64_t row_floats(const Shape &s) { return ceil((s.out[2] - 1) * s.stride[2] + s.columns, kLanes) * kLanes; }
int64_t chunk_rows(const Shape &s) { return (s.row_chunk - 1) * s.stride[1] + s.rows; }
// One line more where the count is even, against points that share few sets of a cache.
int64_t point_floats(const Shape &s) {
  return (s.channels * chunk_rows(s) * row_floats(s) / kLanes | 1) * kLanes;
}
int64_t product_floats(const Shape &s) { return (s.out_blocks * s.row_chunk * s.out[2] | 1) * kLanes; }
// Whether the points' products are summed, so that there is but one result.
bool sums(const Shape &s) { return s.planes == 1; }

// Pixels `STRIDE` columns apart against the blocks of a panel.
struct Window {
  const float *a;             // the first pixel's first column of the first channel and row
  int64_t channels, rows, columns;
  intptr_t channel, row;      // distances
  int64_t points;             // summed over, `point` apart, their panels of B `b_point` apart
  intptr_t point, b_point;
  const float *b;
};

// Blocks of columns from FIRST on, of the NR that the panel has.
template <int MR, int NR, int STRIDE, int FIRST = 0>
void product(const Window &w, float *c, intptr_t c_block) {
  constexpr int kHere = std::min(tile_blocks(MR, NR), NR - FIRST);
  Accumulators<MR, kHere, NR> sum;
  sum.clear();
  for (int64_t point = 0; point < w.points; ++point) {
    const float *b = w.b + point * w.b_point + FIRST * kLanes;
    for (int64_t channel = 0; channel < w.channels; ++channel)
      for (int64_t row = 0; row < w.rows; ++row) {
        const float *a = w.a + point * w.point + channel * w.channel + row * w.row;
        for (int64_t column = 0; column < w.columns; ++column, ++a, b += NR * kLanes) {
          asm("" : "+r"(a));  // or GCC keeps what the next columns read again in registers, and spills the sums
          sum.add(a, STRIDE, b);
        }
      }
  }
#pragma GCC unroll 32
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kHere; ++j) store(c + (FIRST + j) * c_block + i * kLanes, sum.at[i][j]);
  if constexpr (FIRST + kHere < NR) product<MR, NR, STRIDE, FIRST + kHere>(w, c, c_block);
}

using Product = void (*)(const Window &, float *, intptr_t);

template <int NR, int STRIDE>
constexpr auto kProducts = by_rows<Product, kPixels>([](auto pixels) { return product<pixels, NR, STRIDE>; });

class Worker {
 public:
  Worker(const Shape &s, const Buffers &b)
      : s_(s),
        b_(b),
        row_(row_floats(s)),
        channel_(chunk_rows(s) * row_),
        point_(point_floats(s)),
        product_(product_floats(s)),
        transformed_(b.scratch),
        products_(b.scratch + s.points * point_) {}

  // Rows [first, last) of planes [plane, plane + s.planes) of one image's result.
  void chunk(int64_t image, int64_t plane, int64_t first, int64_t last) const {
    transform(image, plane, first, last);
    multiply(first, last);
    for (int64_t block = 0; block < s_.out_blocks; ++block) give(image, plane, block, first, last);
  }

 private:
  void transform(int64_t image, int64_t plane, int64_t first, int64_t last) const {
    const int64_t top = first * s_.stride[1] - s_.pad[1];
    const int64_t rows = (last - 1 - first) * s_.stride[1] + s_.rows;
    for (int64_t channel = 0; channel < s_.channels; ++channel)
      for (int64_t row = 0; row < rows; ++row) {
        const float *from[kMostSeen];
        for (int64_t i = 0; i < s_.seen; ++i) {
          const int64_t z = plane * s_.stride[0] - s_.pad[0] + i, y = top + row;
          const bool there = z >= 0 && z < s_.in[0] && y >= 0 && y < s_.in[1];
          const int64_t at = (((image * s_.channels + channel) * s_.in[0] + z) * s_.in[1] + y) * s_.in[2];
          from[i] = there ? b_.src + at : nullptr;
        }
        transform_row(from, transformed_ + channel * channel_ + row * row_);
      }
  }

  void transform_row(const float *const from[], float *to) const {
    for (int64_t x = 0; x < row_; x += kLanes) {
      const int64_t left = x - s_.pad[2];
      // Columns of the input that are there: lanes [low, high).
      const int64_t low = std::clamp<int64_t>(-left, 0, kLanes), high = std::clamp<int64_t>(s_.in[2] - left, 0, kLanes);
      const Mask mask = low < high ? Mask((1u << high) - (1u << low)) : Mask(0);
      Floats seen[kMostSeen];
      for (int64_t i = 0; i < s_.seen; ++i)
        seen[i] = from[i] == nullptr || mask == 0 ? zeros() : load(mask, from[i] + left);
      if (sums(s_)) {
        for (int64_t i = 0; i < s_.seen; ++i) store(to + i * point_ + x, seen[i]);
        continue;
      }
      const float *factor = b_.before;
      for (int64_t point = 0; point < s_.points; ++point) {
        Floats sum = zeros();
        for (int64_t i = 0; i < s_.seen; ++i) sum = fma(broadcast(*factor++), seen[i], sum);
        store(to + point * point_ + x, sum);
      }
    }
  }

  void multiply(int64_t first, int64_t last) const {
    const int64_t width = s_.out[2], groups = ceil(width, kPixels), taps = s_.channels * s_.rows * s_.columns;
    const intptr_t c_block = (last - first) * width * kLanes, b_point = taps * s_.out_blocks * kLanes;
    const int64_t results = sums(s_) ? 1 : s_.points;
    Window w{nullptr, s_.channels, s_.rows, s_.columns, channel_, row_, sums(s_) ? s_.points : 1, point_, b_point,
             nullptr};
    for (int64_t result = 0; result < results; ++result)
      for (int64_t block = 0; block < s_.out_blocks; block += kPanel) {
        const bool wide = block + kPanel <= s_.out_blocks;
        const auto &go = s_.stride[2] == 1 ? (wide ? kProducts<2, 1> : kProducts<1, 1>)
                                                    : (wide ? kProducts<2, 2> : kProducts<1, 2>);
        w.b = b_.weights + result * b_point + block * taps * kLanes;
        float *const to = products_ + result * product_ + block * c_block;
        for (int64_t row = 0; row < last - first; ++row)
          for (int64_t group = 0; group < groups; ++group) {
            const int64_t x = width * group / groups, until = width * (group + 1) / groups;
            w.a = transformed_ + result * point_ + row * s_.stride[1] * row_ + x * s_.stride[2];
            go[until - x](w, to + (row * width + x) * kLanes, c_block);
          }
      }
  }

  void give(int64_t image, int64_t plane, int64_t block, int64_t first, int64_t last) const {
    const int64_t planes = std::min(s_.planes, s_.out[0] - plane), width = s_.out[2];
    const int64_t points = sums(s_) ? 1 : s_.points;
    const float *from = products_ + block * (last - first) * width * kLanes;
    const Floats bias = load(b_.bias + block * kLanes);
    const Floats low = broadcast(s_.low), high = broadcast(s_.high);
    const intptr_t begin = image * s_.to_batch + block * s_.to_block + plane * s_.to_plane;
    for (int64_t row = first; row < last; ++row)
      for (int64_t x = 0; x < width; ++x, from += kLanes) {
        Floats sum[kMostPlanes];
        if (sums(s_)) {
          sum[0] = load(from) + bias;
        } else {
#pragma GCC unroll 4
          for (int64_t i = 0; i < kMostPlanes; ++i) sum[i] = bias;
          for (int64_t point = 0; point < points; ++point) {
            const Floats value = load(from + point * product_);
#pragma GCC unroll 4
            for (int64_t i = 0; i < kMostPlanes; ++i)
              sum[i] = fma(broadcast(b_.after[i * points + point]), value, sum[i]);
          }
        }
        for (int64_t i = 0; i < planes; ++i) {
          const intptr_t at = begin + i * s_.to_plane + row * s_.to_row + x * s_.to_pixel;
          Floats value = sum[i];
          if (b_.residual != nullptr) value += load(b_.residual + at);
          store(b_.dst + at, clamp(value, low, high));
        }
      }
  }

  const Shape &s_;
  const Buffers &b_;
  const intptr_t row_, channel_, point_, product_;
  float *const transformed_;
  float *const products_;
};

void run(const Shape &s, const Buffers &b, int64_t share) {
  const int64_t stacks = ceil(s.out[0], s.planes), rows = s.out[1];
  const int64_t all = s.batch * stacks * rows;
  const int64_t end = all * (share + 1) / s.shares;
  const Worker worker(s, b);
  for (int64_t at = all * share / s.shares; at < end;) {
    const int64_t stack = at / rows, row = at % rows;
    const int64_t here = std::min({s.row_chunk, rows - row, end - at});
    worker.chunk(stack / stacks, stack % stacks * s.planes, row, row + here);
    at += here;
  }
}

}  // namespace

extern "C" {

int64_t collage_shallow_conv_scratch(const collage_shallow_conv_shape *s) {
  return s->points * point_floats(*s) + (sums(*s) ? 1 : s->points) * product_floats(*s);
}

int collage_shallow_conv(void *a, void *b, intptr_t n, void *) {
  const Shape &s = *static_cast<const Shape *>(a);
  if (s.seen > kMostSeen || s.planes > kMostPlanes || s.stride[2] < 1 || s.stride[2] > 2) return COLLAGE_UNAVAILABLE;
  run(s, *static_cast<const Buffers *>(b), n);
  return 0;
}

}  // extern "C"

#include "target_end.h"

#else

extern "C" {

int64_t collage_shallow_conv_scratch(const collage_shallow_conv_shape *) { return 0; }

int collage_shallow_conv(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

}  // extern "C"

#endif
