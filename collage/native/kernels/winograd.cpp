// Winograd's convolution F(m x m, 3 x 3), m = 2 or 4 (Lavin & Gray 2015, sections 4.1 and 4.3).
//
// A chunk of tiles at a time: its (m + 2)^2 points are transformed, multiplied with the transformed weights, one
// matrix product for each point, and transformed back, all by one thread and small enough for its L2 cache. A
// third dimension is summed directly: the taps of a point lie behind each other in the product's inner dimension.

#include "winograd.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "avx512.h"
#include "epilogue.h"
#include "tile.h"

namespace {

using collage::Accumulators;
using collage::Blocked;
using collage::kLanes;

constexpr int kRows = 14;   // rows of the largest register tile
constexpr int kPanel = 2;   // blocks of columns of a register tile

using Shape = collage_winograd_shape;
using Buffers = collage_winograd_buffers;

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

Range part(int64_t size, int64_t which, int64_t parts) {
  return {size * which / parts, size * (which + 1) / parts};
}

// One line more where the count is even: points whose distance is a power of two would share few sets of a cache.
int64_t odd_lines(int64_t lines) { return lines | 1; }

int64_t points(const Shape &s) { return (s.tile + 2) * (s.tile + 2); }
int64_t chunk_planes(const Shape &s) { return std::min(s.chunk_depths + s.depth_taps - 1, s.in_depth); }
// Lines between two points of the transformed input (of one plane) and of the products.
int64_t in_lines(const Shape &s) { return odd_lines(s.in_blocks * s.chunk_tiles); }
int64_t out_lines(const Shape &s, int64_t blocks) { return odd_lines(blocks * s.chunk_tiles * s.chunk_depths); }

template <int M>
struct Transform;

template <>
struct Transform<2> {
  static constexpr int kPoints = 4;
  static inline void in(const __m512 x[4], __m512 y[4]) {
    y[0] = x[2] - x[0];
    y[1] = x[1] + x[2];
    y[2] = x[2] - x[1];
    y[3] = x[3] - x[1];
  }
  static inline void out(const __m512 x[4], __m512 y[2]) {
    y[0] = x[0] + x[1] + x[2];
    y[1] = x[1] - x[2] + x[3];
  }
};

// Interpolated at 0, infinity, +-r and +-2r with r^2 = 1/2: a fifth of the error of the usual 0, infinity, +-1, +-2
// (2.5e-6 of the largest result, not 1.1e-5, for 256 channels), and no more arithmetic.
template <>
struct Transform<4> {
  static constexpr int kPoints = 6;
  static constexpr float kRoot = 0.70710678f;
  static inline void in(const __m512 x[6], __m512 y[6]) {
    const __m512 r = _mm512_set1_ps(kRoot), r2 = _mm512_set1_ps(2 * kRoot);
    const __m512 half = _mm512_set1_ps(0.5f), two = _mm512_set1_ps(2), both = _mm512_set1_ps(2.5f);
    const __m512 a = _mm512_fnmadd_ps(two, x[2], x[4]), b = _mm512_fnmadd_ps(two, x[1], x[3]);
    const __m512 c = _mm512_fnmadd_ps(half, x[2], x[4]), d = _mm512_fnmadd_ps(half, x[1], x[3]);
    y[0] = _mm512_fnmadd_ps(both, x[2], x[0] + x[4]);
    y[1] = _mm512_fmadd_ps(r, b, a);
    y[2] = _mm512_fnmadd_ps(r, b, a);
    y[3] = _mm512_fmadd_ps(r2, d, c);
    y[4] = _mm512_fnmadd_ps(r2, d, c);
    y[5] = _mm512_fnmadd_ps(both, x[3], x[1] + x[5]);
  }
  static inline void out(const __m512 x[6], __m512 y[4]) {
    const __m512 r = _mm512_set1_ps(kRoot), two = _mm512_set1_ps(2), four = _mm512_set1_ps(4);
    const __m512 half = _mm512_set1_ps(0.5f), eight = _mm512_set1_ps(8);
    const __m512 a = x[1] + x[2], b = r * (x[1] - x[2]), c = x[3] + x[4], d = r * (x[3] - x[4]);
    y[0] = x[0] + a + c;
    y[1] = _mm512_fmadd_ps(two, d, b);
    y[2] = half * _mm512_fmadd_ps(four, c, a);
    y[3] = _mm512_fmadd_ps(half, _mm512_fmadd_ps(eight, d, b), x[5]);
  }
};

// Points of one tile of one block of channels: `src` is its first element, rows and columns outside are zeros.
template <int M>
inline void transform_in(const float *src, intptr_t row, Range rows, Range columns, float *dst, intptr_t point) {
  constexpr int P = Transform<M>::kPoints;
  __m512 middle[P][P];
#pragma GCC unroll 8
  for (int j = 0; j < P; ++j) {
    __m512 x[P], y[P];
    const bool inside = j >= columns.begin && j < columns.end;
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i)
      x[i] = inside && i >= rows.begin && i < rows.end ? _mm512_load_ps(src + i * row + j * kLanes)
                                                       : _mm512_setzero_ps();
    Transform<M>::in(x, y);
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i) middle[i][j] = y[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < P; ++i) {
    __m512 y[P];
    Transform<M>::in(middle[i], y);
#pragma GCC unroll 8
    for (int j = 0; j < P; ++j) _mm512_store_ps(dst + (i * P + j) * point, y[j]);
  }
}

struct Finish {
  __m512 bias, low, high;
};

// Outputs of one tile of one block of channels; of those outside nothing is written.
template <int M, bool RESIDUAL>
inline void transform_out(const float *src, intptr_t point, const Finish &f, const float *residual, float *dst,
                          intptr_t row, int64_t rows, int64_t columns) {
  constexpr int P = Transform<M>::kPoints;
  __m512 middle[M][P];
#pragma GCC unroll 8
  for (int j = 0; j < P; ++j) {
    __m512 x[P], y[M];
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i) x[i] = _mm512_load_ps(src + (i * P + j) * point);
    Transform<M>::out(x, y);
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) middle[i][j] = y[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i) {
    if (i >= rows) break;
    __m512 y[M];
    Transform<M>::out(middle[i], y);
#pragma GCC unroll 4
    for (int j = 0; j < M; ++j) {
      if (j >= columns) break;
      const intptr_t at = i * row + j * kLanes;
      __m512 value = y[j] + f.bias;
      if (RESIDUAL) value += _mm512_load_ps(residual + at);
      _mm512_store_ps(dst + at, collage::clamp(value, f.low, f.high));
    }
  }
}

// C's rows are 16 floats apart, its blocks of columns `c_block`.
using Product = void (*)(const Blocked &, float *c, intptr_t c_block);

template <int MR, int NR>
void product(const Blocked &o, float *c, intptr_t c_block) {
  Accumulators<MR, NR> sum;
  collage::multiply(o, sum);
#pragma GCC unroll 32
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < NR; ++j) _mm512_store_ps(c + j * c_block + i * kLanes, sum.at[i][j]);
}

template <int NR>
constexpr Product kProducts[kRows + 1] = {
    nullptr,        product<1, NR>, product<2, NR>,  product<3, NR>,  product<4, NR>,
    product<5, NR>, product<6, NR>, product<7, NR>,  product<8, NR>,  product<9, NR>,
    product<10, NR>, product<11, NR>, product<12, NR>, product<13, NR>, product<14, NR>,
};

// One share's work: the tiles and blocks of output channels that it does.
template <int M>
class Worker {
 public:
  Worker(const Shape &s, const Buffers &b, Range blocks)
      : s_(s),
        b_(b),
        blocks_(blocks),
        columns_((s.out_width + M - 1) / M),
        in_point_(in_lines(s) * kLanes),
        in_plane_(kPoints * in_point_),
        out_point_(out_lines(s, blocks.size()) * kLanes),
        transformed_(b.scratch),
        products_(b.scratch + chunk_planes(s) * in_plane_) {}

  // Tiles of one image, depths [depths) of its result.
  void chunk(int64_t image, Range tiles, Range depths) const {
    const Range planes{std::max<int64_t>(0, depths.begin - s_.pad_depth),
                       std::min(s_.in_depth, depths.end - 1 - s_.pad_depth + s_.depth_taps)};
    for (int64_t plane = planes.begin; plane < planes.end; ++plane)
      transform(image, tiles, plane, transformed_ + (plane - planes.begin) * in_plane_);
    multiply(tiles.size(), depths, planes.begin);
    for (int64_t depth = depths.begin; depth < depths.end; ++depth)
      give(image, tiles, depth, products_ + (depth - depths.begin) * tiles.size() * kLanes,
           depths.size() * tiles.size() * kLanes);
  }

 private:
  static constexpr int P = Transform<M>::kPoints;
  static constexpr int64_t kPoints = P * P;

  void transform(int64_t image, Range tiles, int64_t plane, float *to) const {
    const intptr_t row = s_.in_width * kLanes, whole = s_.in_height * row;
    for (int64_t block = 0; block < s_.in_blocks; ++block) {
      const float *from = b_.src + ((image * s_.in_blocks + block) * s_.in_depth + plane) * whole;
      for (int64_t tile = tiles.begin; tile < tiles.end; ++tile, to += kLanes) {
        const int64_t y = tile / columns_ * M - s_.pad_top, x = tile % columns_ * M - s_.pad_left;
        const float *src = from + y * row + x * kLanes;
        if (y >= 0 && x >= 0 && y + P <= s_.in_height && x + P <= s_.in_width)
          transform_in<M>(src, row, {0, P}, {0, P}, to, in_point_);
        else
          transform_edge(src, row, {-y, s_.in_height - y}, {-x, s_.in_width - x}, to);
      }
    }
  }

  __attribute__((noinline)) void transform_edge(const float *src, intptr_t row, Range rows, Range columns,
                                                float *to) const {
    alignas(64) float inside[P * P * kLanes];
    for (int i = 0; i < P; ++i)
      for (int j = 0; j < P; ++j) {
        const bool there = i >= rows.begin && i < rows.end && j >= columns.begin && j < columns.end;
        _mm512_store_ps(inside + (i * P + j) * kLanes,
                        there ? _mm512_load_ps(src + i * row + j * kLanes) : _mm512_setzero_ps());
      }
    transform_in<M>(inside, P * kLanes, {0, P}, {0, P}, to, in_point_);
  }

  void multiply(int64_t tiles, Range depths, int64_t first_plane) const {
    const int64_t groups = (tiles + kRows - 1) / kRows;
    const intptr_t per_block = s_.depth_taps * s_.in_blocks * kLanes * kLanes;
    const intptr_t c_block = depths.size() * tiles * kLanes;
    for (int64_t point = 0; point < kPoints; ++point) {
      const float *weights = b_.weights + point * s_.out_blocks * per_block;
      for (int64_t block = blocks_.begin; block < blocks_.end;) {
        const int64_t wide = block + kPanel <= s_.out_blocks && block % kPanel == 0 ? kPanel : 1;
        const float *panel = weights + block * per_block;
        float *to = products_ + point * out_point_ + (block - blocks_.begin) * c_block;
        for (int64_t depth = depths.begin; depth < depths.end; ++depth) {
          const Range taps{std::max<int64_t>(0, s_.pad_depth - depth),
                           std::min(s_.depth_taps, s_.in_depth + s_.pad_depth - depth)};
          Blocked o{};
          o.a_block = tiles * kLanes;
          o.blocks = s_.in_blocks;
          o.a_tap = in_plane_;
          o.taps = std::max<int64_t>(0, taps.size());
          o.b = panel + taps.begin * s_.in_blocks * kLanes * kLanes * wide;
          const float *a = transformed_ + (depth - s_.pad_depth + taps.begin - first_plane) * in_plane_ +
                           point * in_point_;
          for (int64_t group = 0; group < groups; ++group) {
            const Range rows = part(tiles, group, groups);
            o.a = a + rows.begin * kLanes;
            const Product go = (wide == 2 ? kProducts<2> : kProducts<1>)[rows.size()];
            go(o, to + ((depth - depths.begin) * tiles + rows.begin) * kLanes, c_block);
          }
        }
        block += wide;
      }
    }
  }

  void give(int64_t image, Range tiles, int64_t depth, const float *from, intptr_t c_block) const {
    const intptr_t row = s_.out_width * kLanes, whole = s_.out_height * row;
    for (int64_t block = blocks_.begin; block < blocks_.end; ++block) {
      const Finish finish{b_.bias == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(b_.bias + block * kLanes),
                          _mm512_set1_ps(s_.low), _mm512_set1_ps(s_.high)};
      const intptr_t plane = ((image * s_.out_blocks + block) * s_.out_depth + depth) * whole;
      const float *src = from + (block - blocks_.begin) * c_block;
      for (int64_t tile = tiles.begin; tile < tiles.end; ++tile, src += kLanes) {
        const int64_t y = tile / columns_ * M, x = tile % columns_ * M;
        const intptr_t at = plane + y * row + x * kLanes;
        if (b_.residual != nullptr)
          transform_out<M, true>(src, out_point_, finish, b_.residual + at, b_.dst + at, row, s_.out_height - y,
                                 s_.out_width - x);
        else
          transform_out<M, false>(src, out_point_, finish, nullptr, b_.dst + at, row, s_.out_height - y,
                                  s_.out_width - x);
      }
    }
  }

  const Shape &s_;
  const Buffers &b_;
  const Range blocks_;
  const int64_t columns_;
  const intptr_t in_point_, in_plane_, out_point_;
  float *const transformed_;
  float *const products_;
};

template <int M>
void run(const Shape &s, const Buffers &b, int64_t share) {
  const int64_t tiles = ((s.out_height + M - 1) / M) * ((s.out_width + M - 1) / M);
  const Range everything{0, s.batch * tiles};
  const int64_t panels = (s.out_blocks + kPanel - 1) / kPanel;
  Range mine = everything, blocks{0, s.out_blocks};
  if (s.by_channels) {
    const Range some = part(panels, share, s.shares);
    blocks = {some.begin * kPanel, std::min(some.end * kPanel, s.out_blocks)};
    if (blocks.size() <= 0) return;
  } else {
    mine = part(everything.size(), share, s.shares);
  }
  const Worker<M> worker(s, b, blocks);
  for (int64_t at = mine.begin; at < mine.end;) {
    const int64_t image = at / tiles, first = at % tiles;
    const int64_t here = std::min(mine.end - at, tiles - first);
    const int64_t chunks = (here + s.chunk_tiles - 1) / s.chunk_tiles;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const Range some = part(here, chunk, chunks);
      for (int64_t depth = 0; depth < s.out_depth; depth += s.chunk_depths)
        worker.chunk(image, {first + some.begin, first + some.end},
                     {depth, std::min(depth + s.chunk_depths, s.out_depth)});
    }
    at += here;
  }
}

}  // namespace

extern "C" {

int64_t collage_winograd_scratch(const collage_winograd_shape *s) {
  return points(*s) * (chunk_planes(*s) * in_lines(*s) + out_lines(*s, s->out_blocks)) * kLanes;
}

int collage_winograd(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  const Buffers &buffers = *static_cast<const Buffers *>(b);
  if (shape.tile == 2) run<2>(shape, buffers, n);
  else if (shape.tile == 4) run<4>(shape, buffers, n);
  else return COLLAGE_UNAVAILABLE;
  return 0;
}

}  // extern "C"

#else

extern "C" {

int64_t collage_winograd_scratch(const collage_winograd_shape *) { return 0; }

int collage_winograd(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

}  // extern "C"

#endif
