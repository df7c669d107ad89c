// Winograd's convolution F(m x m, r x r), m = 2 or 4, r = 2 or 3 (Lavin & Gray 2015, section 4).
//
// A chunk of tiles at a time: its (m + r - 1)^2 points are transformed, multiplied with the transformed weights, one
// matrix product for each point, and transformed back, all by one thread and small enough for its L2 cache. A
// third dimension is summed directly: the taps of a point lie behind each other in the product's inner dimension.

#include "winograd.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "tile.h"
#include "winograd_tiles.h"

namespace {

using namespace collage;

constexpr int kRows = tile_rows(14);
constexpr int kPanel = 2;  // blocks of columns of a register tile

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

int64_t chunk_planes(const Shape &s) { return std::min(s.chunk_depths + s.depth_taps - 1, s.in_depth); }
// Lines between two points of the transformed input (of one plane) and of the products.
int64_t in_lines(const Shape &s) { return odd_lines(s.in_blocks * s.chunk_tiles); }
int64_t out_lines(const Shape &s, int64_t blocks) { return odd_lines(blocks * s.chunk_tiles * s.chunk_depths); }

// One phase of an axis.
struct Phase {
  Phase(const collage_winograd_axis &axis, int64_t which, int64_t tile)
      : in(axis.in),
        pad(axis.pad[which]),
        begin(axis.begin[which]),
        step(axis.phases),
        count(axis.count[which]),
        tiles((count + tile - 1) / tile) {}

  int64_t in, pad, begin, step, count, tiles;
};

// C's rows are 16 floats apart, its blocks of columns `c_block`.
using Product = void (*)(const Blocked &, float *c, intptr_t c_block);

template <int MR, int NR>
void product(const Blocked &o, float *c, intptr_t c_block) {
  multiply_panel<MR, NR>(o, [&](const auto &sum, auto block) {
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < sum.kBlocks; ++j) store(c + (block + j) * c_block + i * kLanes, sum.at[i][j]);
  });
}

template <int NR>
constexpr auto kProducts = by_rows<Product, kRows>([](auto rows) { return product<rows, NR>; });

// One share's work: the tiles and blocks of output channels that it does.
template <int P>
class Worker {
 public:
  static constexpr int64_t M = Transform<P>::kOutputs;

  Worker(const Shape &s, const Buffers &b, int64_t row_phase, int64_t column_phase, Range blocks)
      : s_(s),
        b_(b),
        rows_(s.rows, row_phase, M),
        columns_(s.columns, column_phase, M),
        weights_(b.weights + (row_phase * s.columns.phases + column_phase) * kPoints * s.out_blocks * per_block()),
        blocks_(blocks),
        in_point_(in_lines(s) * kLanes),
        in_plane_(kPoints * in_point_),
        out_point_(out_lines(s, blocks.size()) * kLanes),
        transformed_(b.scratch),
        products_(b.scratch + chunk_planes(s) * in_plane_) {}

  // Tiles of one image.
  int64_t tiles() const { return rows_.tiles * columns_.tiles; }

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
  static constexpr int64_t kPoints = P * P;

  intptr_t per_block() const { return s_.depth_taps * s_.in_blocks * kLanes * kLanes; }

  void transform(int64_t image, Range tiles, int64_t plane, float *to) const {
    const collage_winograd_steps &step = s_.from;
    for (int64_t block = 0; block < s_.in_blocks; ++block) {
      const float *from = b_.src + image * step.batch + block * step.block + plane * step.plane;
      for (int64_t tile = tiles.begin; tile < tiles.end; ++tile, to += kLanes) {
        const int64_t y = tile / columns_.tiles * M - rows_.pad, x = tile % columns_.tiles * M - columns_.pad;
        const float *src = from + y * step.row + x * step.pixel;
        if (y >= 0 && x >= 0 && y + P <= rows_.in && x + P <= columns_.in)
          transform_in<P>(src, step.row, step.pixel, to, in_point_);
        else
          transform_edge(src, {-y, rows_.in - y}, {-x, columns_.in - x}, to);
      }
    }
  }

  // A tile of which only [rows) and [columns) are in the input.
  __attribute__((noinline)) void transform_edge(const float *src, Range rows, Range columns, float *to) const {
    alignas(64) float inside[P * P * kLanes];
    for (int i = 0; i < P; ++i)
      for (int j = 0; j < P; ++j) {
        const bool there = i >= rows.begin && i < rows.end && j >= columns.begin && j < columns.end;
        store(inside + (i * P + j) * kLanes, there ? load(src + i * s_.from.row + j * s_.from.pixel) : zeros());
      }
    transform_in<P>(inside, P * kLanes, kLanes, to, in_point_);
  }

  void multiply(int64_t tiles, Range depths, int64_t first_plane) const {
    const intptr_t c_block = depths.size() * tiles * kLanes;
    int64_t products = 0;
    for (int64_t depth = depths.begin; depth < depths.end; ++depth) products += taps(depth).size();
    for (int64_t point = 0; point < kPoints; ++point) {
      const float *weights = weights_ + point * s_.out_blocks * per_block();
      for (int64_t block = blocks_.begin; block < blocks_.end;) {
        const int64_t wide = block + kPanel <= s_.out_blocks && block % kPanel == 0 ? kPanel : 1;
        Stream stream{weights + block * per_block(), wide * per_block(), products * groups(tiles)};
        if (block + wide < blocks_.end) stream.next = stream.panel + stream.floats;
        else if (point + 1 < kPoints) stream.next = weights + (s_.out_blocks + blocks_.begin) * per_block();
        for (int64_t depth = depths.begin; depth < depths.end; ++depth) {
          float *to = products_ + point * out_point_ + (block - blocks_.begin) * c_block;
          const float *from = transformed_ + (depth - s_.pad_depth - first_plane) * in_plane_ + point * in_point_;
          panel(tiles, taps(depth), int(wide), from, stream, to + (depth - depths.begin) * tiles * kLanes, c_block);
        }
        block += wide;
      }
    }
  }

  static int64_t groups(int64_t tiles) { return (tiles + kRows - 1) / kRows; }

  // Taps of the window that see a plane, for that plane of the result.
  Range taps(int64_t depth) const {
    const int64_t begin = std::max<int64_t>(0, s_.pad_depth - depth);
    return {begin, std::max(begin, std::min(s_.depth_taps, s_.in_depth + s_.pad_depth - depth))};
  }

  // A panel of weights, and the one that is fetched while it is used: a part with each of `parts` taps.
  struct Stream {
    const float *panel;
    int64_t floats, parts;
    const float *next = nullptr;
    int64_t done = 0;
  };

  // One point of the tiles of one plane of the result: from `from`, where tap 0 would see it.
  void panel(int64_t tiles, Range taps, int wide, const float *from, Stream &stream, float *to,
             intptr_t c_block) const {
    const auto &products = wide == 2 ? kProducts<2> : kProducts<1>;
    const intptr_t tap = s_.in_blocks * kLanes * kLanes * wide;
    Blocked o{};
    o.a_block = tiles * kLanes;
    o.blocks = s_.in_blocks;
    o.a_tap = in_plane_;
    o.taps = taps.size();
    o.b = stream.panel + taps.begin * tap;
    const float *next = stream.parts > 0 ? stream.next : nullptr;  // planes may see nothing but padding
    if (next != nullptr) {
      const int64_t parts = stream.parts * s_.in_blocks * kLanes;
      o.ahead_lines = (stream.floats + parts - 1) / parts;
    }
    for (int64_t group = 0; group < groups(tiles); ++group) {
      const Range rows = part(tiles, group, groups(tiles));
      o.a = from + taps.begin * in_plane_ + rows.begin * kLanes;
      if (next != nullptr) o.ahead = next + stream.floats / kLanes * stream.done / stream.parts * kLanes;
      products[rows.size()](o, to + rows.begin * kLanes, c_block);
      stream.done += taps.size();
    }
  }

  void give(int64_t image, Range tiles, int64_t depth, const float *from, intptr_t c_block) const {
    const collage_winograd_steps &step = s_.to;
    const intptr_t down = rows_.step * step.row, right = columns_.step * step.pixel;
    for (int64_t block = blocks_.begin; block < blocks_.end; ++block) {
      const Finish finish{load(b_.bias + block * kLanes), broadcast(s_.low), broadcast(s_.high)};
      const intptr_t plane = image * step.batch + block * step.block + depth * step.plane + rows_.begin * step.row +
                             columns_.begin * step.pixel;
      const float *src = from + (block - blocks_.begin) * c_block;
      for (int64_t tile = tiles.begin; tile < tiles.end; ++tile, src += kLanes) {
        const int64_t y = tile / columns_.tiles * M, x = tile % columns_.tiles * M;
        const intptr_t at = plane + y * down + x * right;
        const int64_t rows = rows_.count - y, columns = columns_.count - x;
        if (b_.residual != nullptr)
          transform_out<P, true>(src, out_point_, finish, b_.residual + at, b_.dst + at, down, right, rows, columns);
        else
          transform_out<P, false>(src, out_point_, finish, nullptr, b_.dst + at, down, right, rows, columns);
      }
    }
  }

  const Shape &s_;
  const Buffers &b_;
  const Phase rows_, columns_;
  const float *const weights_;
  const Range blocks_;
  const intptr_t in_point_, in_plane_, out_point_;
  float *const transformed_;
  float *const products_;
};

template <int P>
void run_phase(const Worker<P> &worker, const Shape &s, int64_t share) {
  const int64_t tiles = worker.tiles();
  const Range mine = s.by_channels ? Range{0, s.batch * tiles} : part(s.batch * tiles, share, s.shares);
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

template <int P>
void run(const Shape &s, const Buffers &b, int64_t share) {
  Range blocks{0, s.out_blocks};
  if (s.by_channels) {
    const Range panels = part((s.out_blocks + kPanel - 1) / kPanel, share, s.shares);
    blocks = {panels.begin * kPanel, std::min(panels.end * kPanel, s.out_blocks)};
    if (blocks.size() <= 0) return;
  }
  for (int64_t row = 0; row < s.rows.phases; ++row)
    for (int64_t column = 0; column < s.columns.phases; ++column)
      run_phase<P>(Worker<P>(s, b, row, column, blocks), s, share);
}

}  // namespace

extern "C" {

int64_t collage_winograd_scratch(const collage_winograd_shape *s) {
  return s->points * s->points * (chunk_planes(*s) * in_lines(*s) + out_lines(*s, s->out_blocks)) * kLanes;
}

int collage_winograd(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  const Buffers &buffers = *static_cast<const Buffers *>(b);
  switch (shape.points) {
    case 3: run<3>(shape, buffers, n); break;
    case 4: run<4>(shape, buffers, n); break;
    case 5: run<5>(shape, buffers, n); break;
    case 6: run<6>(shape, buffers, n); break;
    default: return COLLAGE_UNAVAILABLE;
  }
  return 0;
}

}  // extern "C"

#include "target_end.h"

#else

extern "C" {

int64_t collage_winograd_scratch(const collage_winograd_shape *) { return 0; }

int collage_winograd(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

}  // extern "C"

#endif
