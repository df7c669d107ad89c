// Transposed convolution to few channels, such as the last one of a generator of images.
//
// Vectors hold 16 neighbouring pixels of a channel, so that no lane is idle for want of output channels. The input,
// whose channels are innermost, is transposed to that on the way in, a few rows at a time.

#include "narrow_transposed.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "epilogue.h"

namespace {

using namespace collage;

constexpr int kVectors = 2;    // of a row that are computed together
constexpr int kMostOutputs = 4;
constexpr int64_t kMargin = kLanes;  // zeros left of a row: its first pixel lies at a multiple of 64 bytes

using Shape = collage_narrow_transposed_shape;
using Buffers = collage_narrow_transposed_buffers;

int64_t ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Pairs of output columns in whole register tiles, and zeros on both sides.
int64_t row_floats(const Shape &s) {
  return ceil(std::max(ceil(s.out[1], 2), s.in[1]), kVectors * kLanes) * kVectors * kLanes + 2 * kMargin;
}
// Rows of the input that a chunk may see.
int64_t chunk_rows(const Shape &s) { return s.row_chunk + 2; }

class Worker {
 public:
  Worker(const Shape &s, const Buffers &b) : s_(s), b_(b), channel_(row_floats(s)), row_(s.inputs * channel_) {}

  // Pairs [first, last) of rows of one image's result.
  void chunk(int64_t image, int64_t first, int64_t last) const {
    const int64_t top = first - std::max(s_.row_pad[0], s_.row_pad[1]);
    const int64_t bottom = last + 1 - std::min(s_.row_pad[0], s_.row_pad[1]);
    for (int64_t row = top; row < bottom; ++row) turn(image, row, b_.scratch + (row - top) * row_);
    for (int64_t phase = 0; phase < 2; ++phase) {
      const int64_t end = std::min(last, (s_.out[0] + 1 - phase) / 2);
      const float *from = b_.scratch + (first - s_.row_pad[phase] - top) * row_ + kMargin;
      for (int64_t row = first; row < end;) {
        const int64_t height = s_.outputs <= 3 && row + 2 <= end ? 2 : 1;
        for (int64_t x = 0; 2 * x < s_.out[1]; x += kVectors * kLanes) tiles(image, phase, row, height, x, from + x);
        row += height;
        from += height * row_;
      }
    }
  }

 private:
  // One row of the input, all channels, as rows of single channels; zeros where there is none.
  void turn(int64_t image, int64_t row, float *to) const {
    const bool there = row >= 0 && row < s_.in[0];
    for (int64_t channel = 0; channel < s_.inputs; ++channel) {
      float *const line = to + channel * channel_;
      store(line, zeros());
      for (int64_t x = there ? kMargin + ceil(s_.in[1], kLanes) * kLanes : kMargin; x < channel_; x += kLanes)
        store(line + x, zeros());
    }
    if (!there) return;
    for (int64_t block = 0; block < s_.inputs / kLanes; ++block) {
      const float *from = b_.src + image * s_.from_batch + block * s_.from_block + row * s_.from_row;
      float *const lines = to + block * kLanes * channel_ + kMargin;
      for (int64_t x = 0; x < s_.in[1]; x += kLanes) {
        Floats v[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i)
          v[i] = x + i < s_.in[1] ? load(from + (x + i) * s_.from_pixel) : zeros();
        transpose(v);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) store(lines + i * channel_ + x, v[i]);
      }
    }
  }

  void tiles(int64_t image, int64_t phase, int64_t row, int64_t height, int64_t x, const float *from) const {
    switch (s_.outputs) {
      case 1: return height == 2 ? tile<1, 2>(image, phase, row, x, from) : tile<1, 1>(image, phase, row, x, from);
      case 2: return height == 2 ? tile<2, 2>(image, phase, row, x, from) : tile<2, 1>(image, phase, row, x, from);
      case 3: return height == 2 ? tile<3, 2>(image, phase, row, x, from) : tile<3, 1>(image, phase, row, x, from);
      case 4: return tile<4, 1>(image, phase, row, x, from);
    }
  }

  // ROWS rows of 32 pairs of columns of all OUTPUTS channels. `from` is the upper left input of phase 0 without pad.
  template <int OUTPUTS, int ROWS>
  void tile(int64_t image, int64_t phase, int64_t row, int64_t x, const float *from) const {
    Floats sum[2][OUTPUTS][ROWS][kVectors];
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b)
#pragma GCC unroll 4
      for (int o = 0; o < OUTPUTS; ++o)
#pragma GCC unroll 2
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) sum[b][o][r][v] = zeros();
    const float *weights = b_.weights + phase * s_.inputs * 8 * OUTPUTS;
    const float *const begin[2] = {from - s_.column_pad[0], from - s_.column_pad[1]};
    for (int64_t channel = 0; channel < s_.inputs; ++channel)
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u)
#pragma GCC unroll 2
        for (int b = 0; b < 2; ++b)
#pragma GCC unroll 2
          for (int c = 0; c < 2; ++c, weights += OUTPUTS) {
            const float *const at = begin[b] + channel * channel_ + u * row_ + c;
            Floats in[ROWS][kVectors];
#pragma GCC unroll 2
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
              for (int v = 0; v < kVectors; ++v) in[r][v] = load(at + r * row_ + v * kLanes);
#pragma GCC unroll 4
            for (int o = 0; o < OUTPUTS; ++o) {
              const Floats weight = broadcast(weights[o]);
#pragma GCC unroll 2
              for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
                for (int v = 0; v < kVectors; ++v)
                  sum[b][o][r][v] = fma(weight, in[r][v], sum[b][o][r][v]);
            }
          }
    // Even and odd columns alternate.
    for (int o = 0; o < OUTPUTS; ++o)
      for (int r = 0; r < ROWS; ++r) {
        float *const line = b_.dst + ((image * OUTPUTS + o) * s_.out[0] + 2 * (row + r) + phase) * s_.out[1];
        for (int v = 0; v < kVectors; ++v) {
          const Floats even = finish(sum[0][o][r][v], o), odd = finish(sum[1][o][r][v], o);
          Floats first, second;
          alternate(even, odd, first, second);
          put(line, 2 * (x + v * kLanes), first);
          put(line, 2 * (x + v * kLanes) + kLanes, second);
        }
      }
  }

  Floats finish(Floats sum, int output) const {
    const Floats found = activate(sum + broadcast(b_.bias[output]), s_.activation);
    return clamp(found, broadcast(s_.low), broadcast(s_.high));
  }

  void put(float *line, int64_t x, Floats value) const {
    const int64_t left = s_.out[1] - x;
    if (left <= 0) return;
    store(line + x, first_lanes(left), value);
  }

  const Shape &s_;
  const Buffers &b_;
  const intptr_t channel_, row_;
};

void run(const Shape &s, const Buffers &b, int64_t share) {
  const int64_t pairs = ceil(s.out[0], 2), all = s.batch * pairs;
  const int64_t end = all * (share + 1) / s.shares;
  const Worker worker(s, b);
  for (int64_t at = all * share / s.shares; at < end;) {
    const int64_t first = at % pairs, here = std::min({s.row_chunk, pairs - first, end - at});
    worker.chunk(at / pairs, first, first + here);
    at += here;
  }
}

}  // namespace

extern "C" {

int64_t collage_narrow_transposed_scratch(const collage_narrow_transposed_shape *s) {
  return chunk_rows(*s) * s->inputs * row_floats(*s);
}

int collage_narrow_transposed(void *a, void *b, intptr_t n, void *) {
  const Shape &s = *static_cast<const Shape *>(a);
  if (s.outputs < 1 || s.outputs > kMostOutputs || s.inputs % kLanes != 0) return COLLAGE_UNAVAILABLE;
  run(s, *static_cast<const Buffers *>(b), n);
  return 0;
}

}  // extern "C"

#include "target_end.h"

#else

extern "C" {

int64_t collage_narrow_transposed_scratch(const collage_narrow_transposed_shape *) { return 0; }

int collage_narrow_transposed(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

}  // extern "C"

#endif
