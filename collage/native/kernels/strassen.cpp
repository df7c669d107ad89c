// Products by one step of Strassen's algorithm in Winograd's form: with A, B and C in halves of rows and columns,
//
//   s1 = a21 + a22   s2 = s1 - a11    s3 = a11 - a21   s4 = a12 - s2
//   t1 = b12 - b11   t2 = b22 - t1    t3 = b22 - b12   t4 = t2 - b21
//
//   x = a11 b11      c11 = x + a12 b21
//   u = x + s2 t2    y = u + s3 t3    c21 = y - a22 t4
//   z = u + s1 t1    c12 = z + s4 b22    c22 = y + z - u
//
// are 7 products where 8 are direct. The sums of B are made when it is packed. Those of A are made for a chunk of
// pixels at a time, 4 vectors for each 2 x 2 blocks. Those of C cost next to nothing: all 7 products of a register tile
// are computed one after the other, and most only go on adding to the one before.

#include "strassen.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "avx512.h"

#include "epilogue.h"
#include "tile.h"

namespace {

using collage::Accumulators;
using collage::kLanes;

constexpr int kRows = 14;   // rows of the register tile
constexpr int kPanel = 2;   // blocks of columns of it
constexpr int kMostRows = 128;
constexpr int kProducts = 7;

using Shape = collage_strassen_shape;
using Buffers = collage_strassen_buffers;

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

Range part(Range whole, int64_t which, int64_t parts) {
  return {whole.begin + whole.size() * which / parts, whole.begin + whole.size() * (which + 1) / parts};
}

int64_t ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Floats of a left factor; an odd number of lines: those of a high power of two would share few sets of a cache.
int64_t factor_floats(const Shape &s) { return (s.slice * s.row_chunk | 1) * kLanes; }

// Results of a register tile, and what is needed for the others.
constexpr int kC11 = 0, kC12 = 1, kC21 = 2, kU = 3, kY = 4, kZ = 5, kTiles = 6;
constexpr intptr_t kTile = kRows * kPanel * kLanes;
constexpr int kSave[kProducts] = {kU, kC11, kU, kY, kC21, kZ, kC12};

struct Operands {
  const float *a;  // [product][block of k][row][16 k]
  intptr_t a_block, a_product, blocks;
  const float *b;  // [product][k][column]
  const float *ahead;
  intptr_t ahead_lines;  // prefetched with each block
};

template <int MR, int NR>
void products(const Operands &o, float *tiles) {
  Accumulators<MR, NR> sum;
  const float *b = o.b, *ahead = o.ahead;
  sum.clear();
  for (int product = 0; product < kProducts; ++product) {
    if (product == 2 || product == 5) {
#pragma GCC unroll 32
      for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NR; ++j) sum.at[i][j] = _mm512_load_ps(tiles + kU * kTile + (i * NR + j) * kLanes);
    }
    const float *a = o.a + product * o.a_product;
    for (intptr_t block = 0; block < o.blocks; ++block, a += o.a_block) {
      for (intptr_t line = 0; line < o.ahead_lines; ++line, ahead += kLanes) _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 4
      for (int k = 0; k < kLanes; ++k, b += NR * kLanes) sum.add(a + k, kLanes, b);
    }
    float *const save = tiles + kSave[product] * kTile;
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < NR; ++j) _mm512_store_ps(save + (i * NR + j) * kLanes, sum.at[i][j]);
  }
}

using Run = void (*)(const Operands &, float *);

template <int NR>
constexpr Run kRuns[kRows + 1] = {
    nullptr,          products<1, NR>,  products<2, NR>,  products<3, NR>,  products<4, NR>,
    products<5, NR>,  products<6, NR>,  products<7, NR>,  products<8, NR>,  products<9, NR>,
    products<10, NR>, products<11, NR>, products<12, NR>, products<13, NR>, products<14, NR>,
};

template <collage::Activation ACTIVATION>
inline void finish(const Shape &s, __m512 x, __m512 bias, const float *residual, float *to) {
  x += bias;
  const __m512 more = residual == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(residual);
  if (s.residual_first) x += more;
  x = collage::clamp(collage::activate(x, ACTIVATION), _mm512_set1_ps(s.low), _mm512_set1_ps(s.high));
  if (!s.residual_first) x += more;
  _mm512_storeu_ps(to, x);
}

// One share's work: pixels against panels of the halves of the output channels.
class Worker {
 public:
  Worker(const Shape &s, const Buffers &b, Range blocks)
      : s_(s), b_(b), blocks_(blocks), factor_(factor_floats(s)), tiles_(b.scratch),
        factors_(b.scratch + kTiles * kTile) {}

  // The pixels of a chunk: the first half of them are the upper rows of A.
  void chunk(Range pixels) const {
    const int64_t half = ceil(pixels.size(), 2);
    Chunk c{half, pixels.size() - half, {}, {}};
    for (int64_t i = 0; i < pixels.size(); ++i) place(pixels.begin + i, c.from[i], c.to[i]);
    for (int64_t first = 0; first < s_.in_blocks; first += s_.slice) {
      const Range depth{first, std::min(first + s_.slice, s_.in_blocks)};
      const intptr_t per_block = kProducts * depth.size() * kLanes * kLanes;
      const float *const slice = b_.weights + kProducts * first * kLanes * s_.out_blocks * kLanes;
      Panel panel{depth, blocks_.begin, width(blocks_.begin), slice + blocks_.begin * per_block, nullptr};
      pack(c, depth, panel.weights, panel.wide * per_block / kLanes);
      for (; panel.block < blocks_.end; panel.block += kPanel, panel.weights = panel.next) {
        panel.wide = width(panel.block);
        panel.next = panel.weights + panel.wide * per_block;
        multiply(c, panel);
      }
    }
  }

 private:
  struct Chunk {
    int64_t upper, lower;  // rows
    intptr_t from[2 * kMostRows], to[2 * kMostRows];
  };

  void place(int64_t pixel, intptr_t &from, intptr_t &to) const {
    const int64_t x = pixel % s_.out[2], row = pixel / s_.out[2];
    const int64_t y = row % s_.out[1], plane = row / s_.out[1];
    const int64_t z = plane % s_.out[0], image = plane / s_.out[0];
    const collage_strassen_steps &f = s_.from, &t = s_.to;
    from = image * f.batch + z * f.plane + y * f.row + x * f.pixel;
    to = image * t.batch + z * t.plane + y * t.row + x * t.pixel;
  }

  struct Panel {
    Range depth;    // blocks of each half
    int64_t block;  // its first one of half the columns
    int wide;       // blocks
    const float *weights, *next;
  };

  int width(int64_t block) const { return int(std::min<int64_t>(kPanel, blocks_.end - block)); }

  // The left factors of the products, in their order. Meanwhile `lines` cache lines of weights are prefetched.
  void pack(const Chunk &c, Range depth, const float *weights, int64_t lines) const {
    const intptr_t right = s_.in_blocks * s_.from.block;
    const int64_t ahead = ceil(lines, depth.size() * c.upper);
    for (int64_t block = 0; block < depth.size(); ++block)
      for (int64_t row = 0; row < c.upper; ++row) {
        for (int64_t line = 0; line < ahead; ++line, weights += kLanes) _mm_prefetch(weights, _MM_HINT_T1);
        const intptr_t at = (depth.begin + block) * s_.from.block;
        const float *const upper = b_.src + c.from[row] + at;
        const __m512 a11 = _mm512_loadu_ps(upper), a12 = _mm512_loadu_ps(upper + right);
        __m512 a21 = _mm512_setzero_ps(), a22 = a21;
        if (row < c.lower) {
          const float *const lower = b_.src + c.from[c.upper + row] + at;
          a21 = _mm512_loadu_ps(lower);
          a22 = _mm512_loadu_ps(lower + right);
        }
        const __m512 s1 = a21 + a22, s2 = s1 - a11, s3 = a11 - a21, s4 = a12 - s2;
        float *const to = factors_ + (block * c.upper + row) * kLanes;
        const __m512 factors[kProducts] = {a11, a12, s2, s3, a22, s1, s4};
#pragma GCC unroll 8
        for (int i = 0; i < kProducts; ++i) _mm512_store_ps(to + i * factor_, factors[i]);
      }
  }

  void multiply(const Chunk &c, const Panel &panel) const {
    Operands o{};
    o.a_block = c.upper * kLanes;
    o.a_product = factor_;
    o.blocks = panel.depth.size();
    o.b = panel.weights;
    const int64_t groups = ceil(c.upper, kRows), lines = (panel.next - panel.weights) / kLanes;
    const bool more = panel.block + panel.wide < blocks_.end;
    o.ahead_lines = more ? ceil(lines, groups * kProducts * o.blocks) : 0;
    for (int64_t group = 0; group < groups; ++group) {
      const Range rows = part({0, c.upper}, group, groups);
      o.a = factors_ + rows.begin * kLanes;
      if (more) o.ahead = panel.next + lines * group / groups * kLanes;
      (panel.wide == 2 ? kRuns<2> : kRuns<1>)[rows.size()](o, tiles_);
      if (panel.depth.end < s_.in_blocks) {
        give<collage::kNone>(c, rows, panel, false);
        continue;
      }
      switch (s_.activation) {
        case collage::kGelu: give<collage::kGelu>(c, rows, panel, true); break;
        case collage::kTanh: give<collage::kTanh>(c, rows, panel, true); break;
        case collage::kSigmoid: give<collage::kSigmoid>(c, rows, panel, true); break;
        case collage::kSwish: give<collage::kSwish>(c, rows, panel, true); break;
        case collage::kGeluTanh: give<collage::kGeluTanh>(c, rows, panel, true); break;
        default: give<collage::kNone>(c, rows, panel, true);
      }
    }
  }

  template <collage::Activation ACTIVATION>
  void give(const Chunk &c, Range rows, const Panel &panel, bool last) const {
    const int64_t wide = panel.wide;
    for (int64_t j = 0; j < wide; ++j) {
      const int64_t left = panel.block + j, right = left + s_.out_blocks;
      const __m512 bias[2] = {_mm512_loadu_ps(b_.bias + left * kLanes), _mm512_loadu_ps(b_.bias + right * kLanes)};
      const float *from = tiles_ + j * kLanes;
      for (int64_t row = rows.begin; row < rows.end; ++row, from += wide * kLanes) {
        const intptr_t upper = c.to[row], at[2] = {upper + left * s_.to.block, upper + right * s_.to.block};
        put<ACTIVATION>(_mm512_load_ps(from + kC11 * kTile), bias[0], at[0], panel, last);
        put<ACTIVATION>(_mm512_load_ps(from + kC12 * kTile), bias[1], at[1], panel, last);
        if (row >= c.lower) continue;
        const intptr_t down = c.to[c.upper + row] - upper;
        put<ACTIVATION>(_mm512_load_ps(from + kC21 * kTile), bias[0], at[0] + down, panel, last);
        const __m512 y = _mm512_load_ps(from + kY * kTile), z = _mm512_load_ps(from + kZ * kTile);
        put<ACTIVATION>(y + (z - _mm512_load_ps(from + kU * kTile)), bias[1], at[1] + down, panel, last);
      }
    }
  }

  // Adds to what the slices before this one gave.
  template <collage::Activation ACTIVATION>
  void put(__m512 x, __m512 bias, intptr_t at, const Panel &panel, bool last) const {
    if (panel.depth.begin > 0) x += _mm512_loadu_ps(b_.dst + at);
    if (last) finish<ACTIVATION>(s_, x, bias, b_.residual == nullptr ? nullptr : b_.residual + at, b_.dst + at);
    else _mm512_storeu_ps(b_.dst + at, x);
  }

  const Shape &s_;
  const Buffers &b_;
  const Range blocks_;
  const intptr_t factor_;
  float *const tiles_;
  float *const factors_;
};

void run(const Shape &s, const Buffers &b, int64_t share) {
  Range pixels{0, s.batch * s.out[0] * s.out[1] * s.out[2]}, blocks{0, s.out_blocks};
  if (s.by_channels) {
    const Range panels = part({0, ceil(s.out_blocks, kPanel)}, share, s.shares);
    blocks = {panels.begin * kPanel, std::min(panels.end * kPanel, s.out_blocks)};
  } else {
    pixels = part(pixels, share, s.shares);
  }
  const Worker worker(s, b, blocks);
  const int64_t chunks = ceil(pixels.size(), 2 * s.row_chunk);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) worker.chunk(part(pixels, chunk, chunks));
}

}  // namespace

extern "C" {

int64_t collage_strassen_scratch(const collage_strassen_shape *s) {
  return kTiles * kTile + kProducts * factor_floats(*s);
}

int collage_strassen(void *a, void *b, intptr_t n, void *) {
  const Shape &s = *static_cast<const Shape *>(a);
  if (s.row_chunk < 1 || s.row_chunk > kMostRows) return COLLAGE_UNAVAILABLE;
  run(s, *static_cast<const Buffers *>(b), n);
  return 0;
}

}  // extern "C"

#else

extern "C" {

int64_t collage_strassen_scratch(const collage_strassen_shape *) { return 0; }

int collage_strassen(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

}  // extern "C"

#endif
