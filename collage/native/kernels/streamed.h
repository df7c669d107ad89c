// What products have in common whose constant matrix is streamed through the caches in fewer bits than float32.
// To be included after all other headers.

#ifndef COLLAGE_NATIVE_KERNELS_STREAMED_H
#define COLLAGE_NATIVE_KERNELS_STREAMED_H

#include "range.h"
#include "tile.h"

#ifndef COLLAGE_AVX2
#include "bf16.h"
#endif

namespace collage {

// Elements from `at` on of a matrix that is float32 or, with AVX-512, bfloat16.
inline Floats load(const void *from, [[maybe_unused]] bool narrow, intptr_t at, Mask lanes) {
#ifndef COLLAGE_AVX2
  if (narrow) return load_bf16(lanes, static_cast<const uint16_t *>(from) + at);
#endif
  return load(lanes, static_cast<const float *>(from) + at);
}

inline void store(void *to, [[maybe_unused]] bool narrow, intptr_t at, Mask lanes, Floats x) {
#ifndef COLLAGE_AVX2
  if (narrow) return store_bf16(static_cast<uint16_t *>(to) + at, lanes, x);
#endif
  store(static_cast<float *>(to) + at, lanes, x);
}

// Whether a shape's kind of arithmetic and its storages are among those of the instructions that this is built for.
template <typename Shape>
bool is_built(const Shape &s) {
  return kAvx512 || (s.widens && !s.src_narrow && !s.dst_narrow);
}

constexpr int kPanel = 3;  // blocks of columns that are multiplied together
constexpr int64_t kWide = kPanel * kLanes;
constexpr int kTileRows = tile_rows(8);

// A tile's factors: rows of `a` that are `a_row` elements apart, and for each block of columns `lines` lines of 64 bytes
// of weights, which have as many successive k of 16 columns as have 4 bytes. Every kStep lines, `ahead_lines` cache lines
// from `ahead` on are prefetched.
struct Streamed {
  static constexpr intptr_t kStep = 16;
  const void *a;
  intptr_t a_row, lines;
  const float *b;
  const float *ahead;
  intptr_t ahead_lines;

  intptr_t steps() const { return (lines + kStep - 1) / kStep; }  // with each of which that is prefetched
};

[[gnu::always_inline]] inline void prefetch(const float *&ahead, intptr_t lines) {
  for (intptr_t line = 0; line < lines; ++line, ahead += kLanes) _mm_prefetch(ahead, _MM_HINT_T1);
}

// Writes the sums of some rows and a panel, kWide a row.
using StreamedTile = void (*)(const Streamed &, void *);
using StreamedTiles = const std::array<StreamedTile, kTileRows + 1> &;

// Reads the weights of some blocks of columns once, and multiplies all rows with a panel of them while it is in the L2
// cache, `most` at a time; they prefetch the next panel meanwhile. `o` has the rows, whose elements have `item` bytes, and
// `lines`. tiles_of(blocks of a panel) are its tiles, and finish(rows, column, columns) is called when `sums` has their
// sums. `in_order` leaves prefetching to the processor. `after` is what is read after all of that, or nullptr.
template <typename TilesOf, typename Finish>
void each_panel(Streamed o, size_t item, Range rows, int most, Range blocks, const float *weights, void *sums,
                bool in_order, TilesOf tiles_of, Finish finish, const float *after = nullptr) {
  const char *const first = static_cast<const char *>(o.a);
  const float *const end = weights + blocks.end * kLanes * o.lines;
  const int64_t groups = parts(rows, most);
  // Few rows with AVX2 read in order, which the processor prefetches best by itself.
  const bool once = in_order || (!kAvx512 && rows.end - rows.begin <= 2);
  weights += blocks.begin * kLanes * o.lines;
  for (int64_t block = blocks.begin; block < blocks.end; block += kPanel) {
    const int wide = int(std::min<int64_t>(kPanel, blocks.end - block));
    StreamedTiles tiles = tiles_of(wide);
    const intptr_t lines = o.lines * wide;
    const float *const next = weights + lines * kLanes;
    const float *const then = next < end ? next : after;
    const bool more = then != nullptr && !once;
    o.b = weights;
    o.ahead_lines = more ? (wide * o.kStep + groups - 1) / groups : 0;
    for (int64_t group = 0; group < groups; ++group) {
      const Range some = part(rows, group, groups);
      if (more) o.ahead = then + lines * group / groups * kLanes;
      o.a = first + (some.begin - rows.begin) * o.a_row * item;
      tiles[some.end - some.begin](o, sums);
      finish(some, block * kLanes, wide * kLanes);
    }
    weights = next;
  }
}

// A share's rows against its blocks of columns: `Worker`, made of the shape, the buffers and the blocks, takes the rows
// chunk by chunk, and streams the share's weights once for each.
template <typename Worker, typename Shape, typename Buffers>
void run_share(const Shape &s, const Buffers &b, int64_t share) {
  Range rows{0, s.rows}, blocks{0, (s.columns + kLanes - 1) / kLanes};
  (s.by_rows ? rows : blocks) = part(s.by_rows ? rows : blocks, share, s.shares);
  const Worker worker(s, b, blocks);
  const int64_t chunks = parts(rows, s.row_chunk);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) worker.chunk(part(rows, chunk, chunks));
}

}  // namespace collage
#endif
