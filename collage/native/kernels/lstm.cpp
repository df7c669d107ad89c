// One step of an LSTM for a share of its units.
//
// The product of all steps' data with the weights is one matrix product, which is made before. What is left for each
// step is a product of few rows with a matrix that stays in the cache of the core that has these units, and the
// functions of the gates. A block's four gates are beside each other, so that all of a unit is computed at once.

#include "lstm.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>

#include "epilogue.h"
#include "tile.h"

namespace {

using namespace collage;

constexpr int kGates = 4;
constexpr int kRows = kAvx512 ? 4 : 1;  // of the batch at a time: 16 sums, or 4 of two registers each

using Shape = collage_lstm_shape;
using Buffers = collage_lstm_buffers;

// Where a block of units of some rows of the batch is at one step.
struct Place {
  int64_t direction, block, row;
  int64_t step, before;  // along the sequence; before is negative at the first step
  bool last;
};

template <int MR>
void advance(const Shape &s, const Buffers &b, const Place &at) {
  const int64_t blocks = s.hidden / kLanes, width = s.directions * blocks * kGates * kLanes;
  const int64_t state = (at.direction * s.batch + at.row) * s.hidden;  // of [direction][batch][hidden]
  const int64_t one_step = s.directions * s.batch * s.hidden;
  const float *sums = b.sums + (at.step * s.batch + at.row) * width +
                      (at.direction * blocks + at.block) * kGates * kLanes;
  Floats gate[MR][kGates];
#pragma GCC unroll 4
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
    for (int g = 0; g < kGates; ++g) gate[i][g] = load(sums + i * width + g * kLanes);

  const bool first = at.before < 0;
  const float *h = first ? b.before_h : b.y + at.before * one_step;
  if (h != nullptr) {
    h += state;
    const float *w = b.weights + (at.direction * blocks + at.block) * s.hidden * kGates * kLanes;
    for (int64_t k = 0; k < s.hidden; ++k, w += kGates * kLanes) {
      Floats right[kGates];
#pragma GCC unroll 4
      for (int g = 0; g < kGates; ++g) right[g] = load(w + g * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < MR; ++i) {
        const Floats left = broadcast(h[i * s.hidden + k]);
#pragma GCC unroll 4
        for (int g = 0; g < kGates; ++g) gate[i][g] = fma(left, right[g], gate[i][g]);
      }
    }
  }

  const float *c = first ? b.before_c : b.c;
#pragma GCC unroll 4
  for (int i = 0; i < MR; ++i) {
    const int64_t to = state + i * s.hidden + at.block * kLanes;
    Floats cell = sigmoid(gate[i][0]) * tangent(gate[i][3]);
    if (c != nullptr) cell = fma(sigmoid(gate[i][2]), load(c + to), cell);
    const Floats made = sigmoid(gate[i][1]) * tangent(cell);
    store(b.c + to, cell);
    store(b.y + at.step * one_step + to, made);
    if (at.last && b.last_h != nullptr) store(b.last_h + to, made);
  }
}

using Advance = void (*)(const Shape &, const Buffers &, const Place &);
constexpr auto kAdvance = by_rows<Advance, kRows>([](auto rows) { return advance<rows>; });

void run(const Shape &s, const Buffers &b, int64_t number, int64_t share) {
  const int64_t blocks = s.hidden / kLanes, all = s.directions * blocks;
  for (int64_t each = all * share / s.shares; each < all * (share + 1) / s.shares; ++each) {
    Place at{each / blocks, each % blocks, 0, number, number - 1, number == s.steps - 1};
    if (s.reverse != 0 || at.direction == 1) {
      at.step = s.steps - 1 - number;
      at.before = number == 0 ? -1 : at.step + 1;
    }
    for (; at.row < s.batch; at.row += kRows) kAdvance[std::min<int64_t>(kRows, s.batch - at.row)](s, b, at);
  }
}

}  // namespace

extern "C" int collage_lstm(void *a, void *b, intptr_t n, void *) {
  const Shape &shape = *static_cast<const Shape *>(a);
  run(shape, *static_cast<const Buffers *>(b), n / shape.shares, n % shape.shares);
  return 0;
}

#include "target_end.h"

#else

extern "C" int collage_lstm(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }

#endif
