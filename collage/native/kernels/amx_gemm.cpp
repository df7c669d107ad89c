// Products with a large constant matrix of bfloat16 on AMX, the processor's matrix unit: 16 x 16 sums of 32 products each
// in 16 cycles, eight times what dot products in vectors do.
//
// It goes through the weights as bf16_gemm.cpp does, in the same order: panels of 48 columns, one after another, with all
// rows of a chunk against each. Sixteen pairs of k of a block of columns are a tile as they lie. Six tiles have the sums
// of 32 rows and 48 columns; one is for data and one for weights. Rows that are no 32 are two tiles of the same height,
// which overlap in one row where their number is odd.
//
// Both factors take denormals for zero, and sums are float32.

#include "amx_gemm.h"

#include "kernels.h"

#if COLLAGE_AMX

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "bf16_panels.h"

#define COLLAGE_TILES __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma,amx-tile,amx-bf16")))

namespace {

using collage::kLanes;
using collage::kPanel;
using collage::kWide;
using collage::part;
using collage::parts;
using collage::Range;

using Shape = collage_bf16_gemm_shape;
using Buffers = collage_bf16_gemm_buffers;

constexpr int64_t kTileRows = 16, kRows = 2 * kTileRows;
constexpr intptr_t kPairs = 16;       // of k in a tile
constexpr intptr_t kDeep = 2 * kPairs;
constexpr intptr_t kSumRow = kWide * sizeof(float);  // bytes between rows of sums

// What the processor reads: palette 1, then the bytes of a row and the rows of each tile.
struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// GCC does not know what the instructions for tiles read. From here on it is in memory.
inline void written(const void *here) { __asm__ volatile("" ::"r"(here) : "memory"); }

// Tiles 0 to 5 have sums, 6 data, in `height` rows; 7 has weights.
COLLAGE_TILES void configure(int64_t height) {
  Configuration c;
  for (int tile = 0; tile < 8; ++tile) {
    c.row_bytes[tile] = 64;
    c.rows[tile] = uint8_t(tile == 7 ? kPairs : height);
  }
  written(&c);
  _tile_loadconfig(&c);
}

// One step of k of a panel: data of both tiles of rows, and weights, with the bytes between rows of each.
struct Step {
  const char *upper, *lower;
  intptr_t a_row;
  const char *b;
  intptr_t b_row;
};

template <int NR, bool BOTH>
COLLAGE_TILES inline __attribute__((always_inline)) void multiply(const Step &o) {
  _tile_loadd(6, o.upper, o.a_row);
  _tile_loadd(7, o.b, o.b_row);
  _tile_dpbf16ps(0, 6, 7);
  if (NR > 1) {
    _tile_loadd(7, o.b + 64, o.b_row);
    _tile_dpbf16ps(1, 6, 7);
  }
  if (NR > 2) {
    _tile_loadd(7, o.b + 128, o.b_row);
    _tile_dpbf16ps(2, 6, 7);
  }
  if (!BOTH) return;
  _tile_loadd(6, o.lower, o.a_row);
  if (NR > 2) {
    _tile_dpbf16ps(5, 6, 7);
    _tile_loadd(7, o.b + 64, o.b_row);
  }
  if (NR > 1) {
    _tile_dpbf16ps(4, 6, 7);
    _tile_loadd(7, o.b, o.b_row);
  }
  _tile_dpbf16ps(3, 6, 7);
}

// A panel against a group of rows.
struct Factors {
  const char *a;           // the first row
  intptr_t a_row, second;  // bytes between rows, and to the first row of the second tile
  intptr_t steps;
  const char *b, *end;     // weights of whole steps, and those of the last one, filled up with zeros
  intptr_t ahead_lines;    // with each step, so many cache lines from `ahead` on are prefetched
  const char *ahead;
};

template <int NR, bool BOTH>
COLLAGE_TILES void sums_of(const Factors &o, float *c) {
  constexpr intptr_t b_row = NR * 64;
  _tile_zero(0);
  if (NR > 1) _tile_zero(1);
  if (NR > 2) _tile_zero(2);
  if (BOTH) _tile_zero(3);
  if (BOTH && NR > 1) _tile_zero(4);
  if (BOTH && NR > 2) _tile_zero(5);
  const char *ahead = o.ahead;
  written(o.a);
  for (intptr_t step = 0; step < o.steps; ++step) {
    for (intptr_t line = 0; line < o.ahead_lines; ++line, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
    const char *const a = o.a + step * 64;
    multiply<NR, BOTH>({a, a + o.second, o.a_row, o.b + step * kPairs * b_row, b_row});
  }
  if (o.end != nullptr) {
    const char *const a = o.a + o.steps * 64;
    multiply<NR, BOTH>({a, a + o.second, o.a_row, o.end, b_row});
  }
  char *const upper = reinterpret_cast<char *>(c), *const lower = upper + o.second / o.a_row * kSumRow;
  _tile_stored(0, upper, kSumRow);
  if (NR > 1) _tile_stored(1, upper + 64, kSumRow);
  if (NR > 2) _tile_stored(2, upper + 128, kSumRow);
  if (BOTH) _tile_stored(3, lower, kSumRow);
  if (BOTH && NR > 1) _tile_stored(4, lower + 64, kSumRow);
  if (BOTH && NR > 2) _tile_stored(5, lower + 128, kSumRow);
}

using Tiles = void (*)(const Factors &, float *);

constexpr Tiles kTiles[kPanel][2] = {{sums_of<1, false>, sums_of<1, true>},
                                     {sums_of<2, false>, sums_of<2, true>},
                                     {sums_of<3, false>, sums_of<3, true>}};

// One share's work: rows against blocks of columns.
class Worker {
 public:
  Worker(const Shape &s, const Buffers &b, Range blocks) : s_(s), b_(b), blocks_(blocks) {}

  // Streams the share's weights once.
  void chunk(Range rows) const {
    const intptr_t pairs = (s_.depth + 1) / 2, rest = pairs % kPairs;
    float *const end = b_.scratch + kRows * kWide, *const copies = end + kPairs * kWide;
    Factors o{};
    o.steps = pairs / kPairs;
    const char *first;
    if (s_.src_narrow && s_.depth % kDeep == 0) {
      first = static_cast<const char *>(b_.src) + rows.begin * s_.depth * 2;
      o.a_row = s_.depth * 2;
    } else {
      const intptr_t row = (s_.depth + kDeep - 1) / kDeep * kDeep;
      first = static_cast<const char *>(collage::copied_rows(s_, b_, rows, row, copies));
      o.a_row = row * 2;
    }
    const char *weights = reinterpret_cast<const char *>(b_.weights) + blocks_.begin * pairs * 64;
    const int64_t groups = parts(rows, kRows);
    int64_t configured = 0;
    for (int64_t block = blocks_.begin; block < blocks_.end; block += kPanel) {
      const int64_t wide = std::min<int64_t>(kPanel, blocks_.end - block), column = block * kLanes;
      const intptr_t lines = pairs * wide;
      const char *const next = weights + lines * 64;
      const bool more = block + kPanel < blocks_.end;
      o.b = weights;
      o.ahead_lines = more && o.steps ? (lines / o.steps + groups - 1) / groups : 0;
      o.end = rest ? filled_up(next - rest * wide * 64, rest * wide, end) : nullptr;
      for (int64_t group = 0; group < groups; ++group) {
        const Range some = part(rows, group, groups);
        const int64_t count = some.end - some.begin, height = count > kTileRows ? (count + 1) / 2 : count;
        if (height != configured) configure(height);
        configured = height;
        o.ahead = next + lines * group / groups * 64;
        o.a = first + (some.begin - rows.begin) * o.a_row;
        o.second = (count - height) * o.a_row;
        kTiles[wide - 1][count > kTileRows](o, b_.scratch);
        collage::finish_panel(s_, b_, some, column, std::min<int64_t>(wide * kLanes, s_.columns - column));
      }
      weights = next;
    }
    release();
  }

 private:
  // The last pairs of a panel, with zeros behind them, so that they are whole tiles.
  static const char *filled_up(const char *from, intptr_t lines, float *to) {
    for (intptr_t line = 0; line < kPairs * kPanel; ++line)
      _mm512_store_si512(to + line * kLanes,
                         line < lines ? _mm512_load_si512(from + line * 64) : _mm512_setzero_si512());
    return reinterpret_cast<const char *>(to);
  }

  // Threads that hold tiles cost the system more to switch.
  COLLAGE_TILES static void release() { _tile_release(); }

  const Shape &s_;
  const Buffers &b_;
  const Range blocks_;
};

// The system keeps room for tiles only for processes that have asked for it.
bool allowed() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

extern "C" int collage_kernels_amx(void) {
  static const bool found = collage::cpu().amx && allowed();  // shares ask for it in each launch
  return found ? 1 : 0;
}

extern "C" int collage_amx_gemm(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  if (shape.activation < 0 || shape.activation >= collage::kEndingCount) return COLLAGE_UNAVAILABLE;
  if (shape.widens || !collage_kernels_amx()) return COLLAGE_UNAVAILABLE;
  collage::run_share<Worker>(shape, *static_cast<const Buffers *>(b), n);
  return 0;
}

#include "target_end.h"

#else

extern "C" int collage_kernels_amx(void) { return 0; }

extern "C" int collage_amx_gemm(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
