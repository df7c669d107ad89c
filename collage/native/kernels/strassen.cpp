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
//
// The sums mix rows of A, rows of B and columns of B, and a small one would drown in the rounding of a large one. So all
// rows of A are brought to the same binade on their way in and back on their way out, and the rows and columns of B
// when it is packed: by powers of two, which is exact. (Higham 2002, section 23.2.2: the error is relative to the
// largest numbers of both factors.) A row with NaN or infinity takes part as zeros, and its results are NaN.

#include "strassen.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>
#include <cstring>
#include <limits>

#include "epilogue.h"
#include "tile.h"

namespace {

using namespace collage;

constexpr int kRoom = 14;   // rows that there is memory for
constexpr int kRows = tile_rows(kRoom);
constexpr int kPairs = 4;   // of rows that are scaled and packed at a time: from memory, and then from the L1 cache
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
constexpr intptr_t kTile = kRoom * kPanel * kLanes;
constexpr int kSave[kProducts] = {kU, kC11, kU, kY, kC21, kZ, kC12};

struct Operands {
  const float *a;  // [product][block of k][row][16 k]
  intptr_t a_block, a_product, blocks;
  const float *b;  // [product][k][column]
  const float *ahead;
  intptr_t ahead_lines;  // prefetched with each block
};

// Blocks of columns from FIRST on, of the NR that the panel has.
template <int MR, int NR, int FIRST = 0>
void products(const Operands &o, float *tiles) {
  constexpr int kHere = std::min(tile_blocks(MR, NR), NR - FIRST);
  Accumulators<MR, kHere, NR> sum;
  const float *b = o.b + FIRST * kLanes, *ahead = o.ahead;
  const intptr_t ahead_lines = FIRST == 0 ? o.ahead_lines : 0;
  const auto at = [](int i, int j) { return (i * NR + FIRST + j) * kLanes; };
  sum.clear();
  for (int product = 0; product < kProducts; ++product) {
    if (product == 2 || product == 5) {
#pragma GCC unroll 32
      for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < kHere; ++j) sum.at[i][j] = load(tiles + kU * kTile + at(i, j));
    }
    const float *a = o.a + product * o.a_product;
    for (intptr_t block = 0; block < o.blocks; ++block, a += o.a_block) {
      for (intptr_t line = 0; line < ahead_lines; ++line, ahead += kLanes) _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 4
      for (int k = 0; k < kLanes; ++k, b += NR * kLanes) sum.add(a + k, kLanes, b);
    }
    float *const save = tiles + kSave[product] * kTile;
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kHere; ++j) store(save + at(i, j), sum.at[i][j]);
  }
  if constexpr (FIRST + kHere < NR) products<MR, NR, FIRST + kHere>(o, tiles);
}

using Run = void (*)(const Operands &, float *);

template <int NR>
constexpr auto kRuns = by_rows<Run, kRows>([](auto rows) { return products<rows, NR>; });

constexpr uint32_t kInfinity = 0x7f800000;

// The factor that brings numbers to the binade of 1 whose largest magnitude has these bits, and the one back: powers of
// two, whose exponents add up to 0. Subnormal numbers count as the least normal ones. Zeros are brought back by 0, because
// sums with other rows leave a rest, and rows that are not finite by NaN.
struct Scale {
  explicit Scale(uint32_t most) {
    const uint32_t exponent = std::clamp(most >> 23, 1u, 253u);
    const uint32_t bits[2] = {(254 - exponent) << 23, exponent << 23};
    std::memcpy(&to_one, bits, sizeof to_one);
    std::memcpy(&back, bits + 1, sizeof back);
    if (most == 0) back = 0;
    if (most >= kInfinity) back = std::numeric_limits<float>::quiet_NaN();
  }
  float to_one, back;
};

template <Activation ACTIVATION>
inline void finish(const Shape &s, Floats x, const float *residual, float *to) {
  const Floats more = residual == nullptr ? zeros() : load(residual);
  if (s.residual_first) x += more;
  x = clamp(activate(x, ACTIVATION), broadcast(s.low), broadcast(s.high));
  if (!s.residual_first) x += more;
  store(to, x);
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
    Chunk c{};
    c.upper = half;
    c.lower = pixels.size() - half;
    for (int64_t i = 0; i < pixels.size(); ++i) place(pixels.begin + i, c.from[i], c.to[i]);
    if (c.lower < half) c.from[2 * half - 1] = c.from[half - 1];  // any row: it takes part as zeros
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
    float scale[2 * kMostRows], back[2 * kMostRows];
    Mask kept[2 * kMostRows];  // none of a row that takes part as zeros
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
  void pack(Chunk &c, Range depth, const float *weights, int64_t lines) const {
    Ahead ahead{weights, ceil(lines, depth.size() * c.upper)};
    for (int64_t row = 0; row < c.upper; row += kPairs) {
      const int pairs = int(std::min<int64_t>(kPairs, c.upper - row));
      (b_.depth_scales == nullptr ? pack_pairs<false>(pairs, c, depth, row, ahead)
                                  : pack_pairs<true>(pairs, c, depth, row, ahead));
    }
  }

  struct Ahead {
    const float *weights;
    int64_t lines;  // with each pair of rows and block
  };

  template <bool SCALED>
  void pack_pairs(int pairs, Chunk &c, Range depth, int64_t row, Ahead &ahead) const {
    switch (pairs) {
      case 1: return pack_pairs<SCALED, 1>(c, depth, row, ahead);
      case 2: return pack_pairs<SCALED, 2>(c, depth, row, ahead);
      case 3: return pack_pairs<SCALED, 3>(c, depth, row, ahead);
      default: return pack_pairs<SCALED, 4>(c, depth, row, ahead);
    }
  }

  // 16 channels of a row; SCALED: with the factors for the rows of B.
  template <bool SCALED>
  static Floats data(const float *from, Floats factor) {
    const Floats x = load(from);
    return SCALED ? x * factor : x;
  }

  // Factors for 16 channels of either half.
  template <bool SCALED>
  void depth_factors(int64_t block, Floats factors[2]) const {
    for (int side = 0; side < 2; ++side)
      factors[side] = SCALED ? load(b_.depth_scales + (side * s_.in_blocks + block) * kLanes)
                             : zeros();
  }

  template <bool SCALED, int PAIRS>
  void pack_pairs(Chunk &c, Range depth, int64_t first, Ahead &ahead) const {
    scale_pairs<SCALED, PAIRS>(c, depth, first);
    const intptr_t right = s_.in_blocks * s_.from.block;
    const float *weights = ahead.weights;
    for (int64_t block = 0; block < depth.size(); ++block) {
      Floats by[2];
      depth_factors<SCALED>(depth.begin + block, by);
      for (int64_t row = first; row < first + PAIRS; ++row) {
        for (int64_t line = 0; line < ahead.lines; ++line, weights += kLanes) _mm_prefetch(weights, _MM_HINT_T1);
        const intptr_t at = (depth.begin + block) * s_.from.block;
        const float *const upper = b_.src + c.from[row] + at, *const lower = b_.src + c.from[c.upper + row] + at;
        const Mask kept[2] = {c.kept[row], c.kept[c.upper + row]};
        const Floats scale[2] = {broadcast(c.scale[row]), broadcast(c.scale[c.upper + row])};
        const Floats a11 = product(kept[0], data<SCALED>(upper, by[0]), scale[0]);
        const Floats a12 = product(kept[0], data<SCALED>(upper + right, by[1]), scale[0]);
        const Floats a21 = product(kept[1], data<SCALED>(lower, by[0]), scale[1]);
        const Floats a22 = product(kept[1], data<SCALED>(lower + right, by[1]), scale[1]);
        const Floats s1 = a21 + a22, s2 = s1 - a11, s3 = a11 - a21, s4 = a12 - s2;
        float *const to = factors_ + (block * c.upper + row) * kLanes;
        const Floats factors[kProducts] = {a11, a12, s2, s3, a22, s1, s4};
#pragma GCC unroll 8
        for (int i = 0; i < kProducts; ++i) store(to + i * factor_, factors[i]);
      }
    }
    ahead.weights = weights;
  }

  // Finds the scales of pairs of rows. Magnitudes are compared as integers, so that NaN counts as the largest.
  template <bool SCALED, int PAIRS>
  void scale_pairs(Chunk &c, Range depth, int64_t first) const {
    const intptr_t right = s_.in_blocks * s_.from.block;
    Integers most[2][PAIRS];
    const float *from[2][PAIRS];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
      for (int i = 0; i < PAIRS; ++i) {
        most[half][i] = no_bits();
        from[half][i] = b_.src + c.from[half * c.upper + first + i];
      }
    for (int64_t block = depth.begin; block < depth.end; ++block) {
      const intptr_t at = block * s_.from.block;
      Floats by[2];
      depth_factors<SCALED>(block, by);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
        for (int i = 0; i < PAIRS; ++i)
#pragma GCC unroll 2
          for (int side = 0; side < 2; ++side) {
            const Floats x = data<SCALED>(from[half][i] + at + side * right, by[side]);
            most[half][i] = max_magnitude(most[half][i], x);
          }
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
      for (int i = 0; i < PAIRS; ++i) {
        const int64_t row = half * c.upper + first + i;
        const uint32_t found = largest(most[half][i]);
        const Scale scale(found);
        const bool finite = found < kInfinity, there = half == 0 || first + i < c.lower;
        c.scale[row] = scale.to_one;
        c.back[row] = scale.back;
        c.kept[row] = finite && there ? 0xffff : 0;
      }
  }

  static uint32_t largest(Integers x) {
    alignas(64) uint32_t each[kLanes];
    store(each, x);
    return *std::max_element(each, each + kLanes);
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
        give<kNone>(c, rows, panel, false);
        continue;
      }
      switch (s_.activation) {
        case kGelu: give<kGelu>(c, rows, panel, true); break;
        case kTanh: give<kTanh>(c, rows, panel, true); break;
        case kSigmoid: give<kSigmoid>(c, rows, panel, true); break;
        case kSwish: give<kSwish>(c, rows, panel, true); break;
        case kGeluTanh: give<kGeluTanh>(c, rows, panel, true); break;
        default: give<kNone>(c, rows, panel, true);
      }
    }
  }

  template <Activation ACTIVATION>
  void give(const Chunk &c, Range rows, const Panel &panel, bool last) const {
    const int64_t wide = panel.wide;
    for (int64_t j = 0; j < wide; ++j) {
      const int64_t left = panel.block + j, right = left + s_.out_blocks;
      const Columns columns[2] = {of_columns(left), of_columns(right)};
      const float *from = tiles_ + j * kLanes;
      for (int64_t row = rows.begin; row < rows.end; ++row, from += wide * kLanes) {
        const intptr_t upper = c.to[row], at[2] = {upper + left * s_.to.block, upper + right * s_.to.block};
        const Floats back = broadcast(c.back[row]);
        put<ACTIVATION>(load(from + kC11 * kTile), back, columns[0], at[0], panel, last);
        put<ACTIVATION>(load(from + kC12 * kTile), back, columns[1], at[1], panel, last);
        if (row >= c.lower) continue;
        const intptr_t down = c.to[c.upper + row] - upper;
        const Floats below = broadcast(c.back[c.upper + row]);
        put<ACTIVATION>(load(from + kC21 * kTile), below, columns[0], at[0] + down, panel, last);
        const Floats y = load(from + kY * kTile), z = load(from + kZ * kTile);
        const Floats c22 = y + (z - load(from + kU * kTile));
        put<ACTIVATION>(c22, below, columns[1], at[1] + down, panel, last);
      }
    }
  }

  // Of 16 columns.
  struct Columns {
    Floats scale, bias;
  };

  Columns of_columns(int64_t block) const {
    return {load(b_.column_scales + block * kLanes), load(b_.bias + block * kLanes)};
  }

  // Scales the sums back, the row's scale last, so that nothing is too large or small on the way; and adds them to the
  // bias, which goes with the first slice, or to what the slices before this one gave.
  template <Activation ACTIVATION>
  void put(Floats x, Floats back, const Columns &columns, intptr_t at, const Panel &panel, bool last) const {
    const Floats before = panel.depth.begin > 0 ? load(b_.dst + at) : columns.bias;
    x = fma(x * columns.scale, back, before);
    if (last) finish<ACTIVATION>(s_, x, b_.residual == nullptr ? nullptr : b_.residual + at, b_.dst + at);
    else store(b_.dst + at, x);
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
