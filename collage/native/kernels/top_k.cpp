// The largest or the smallest numbers of each row, in order, and their places, as the choice of experts needs them.
//
// Few of many are chosen. A number is compared with the last one of those chosen so far, and seldom goes among them.
// Where there is NaN, no order is the right one. ONNX Runtime's depends on where NaN is, and on its way to choose: the
// best of one are found by a scan, those of more with a heap whose top is the worst of those chosen so far. Rows with
// NaN are chosen in that way, so that NaN is where ONNX Runtime has it.

#include "top_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "range.h"

namespace {

using namespace collage;

using Shape = collage_top_k_shape;
using Buffers = collage_top_k_buffers;

struct Chosen {
  float values[COLLAGE_MOST_TOP_K];
  int64_t places[COLLAGE_MOST_TOP_K];
};

template <bool kSmallest>
bool better(float one, float other) {
  return kSmallest ? one < other : one > other;
}

// Each number goes among those that came before it. Of equal ones the first stays first.
template <bool kSmallest>
void choose(const Shape &s, const float *row, Chosen &chosen) {
  float *values = chosen.values;
  int64_t count = 0;
  for (int64_t column = 0; column < s.columns; ++column) {
    const float each = row[column];
    if (count == s.chosen) {
      if (!better<kSmallest>(each, values[count - 1])) continue;
      --count;
    }
    int64_t at = count++;
    for (; at > 0 && better<kSmallest>(each, values[at - 1]); --at) {
      values[at] = values[at - 1];
      chosen.places[at] = chosen.places[at - 1];
    }
    values[at] = each;
    chosen.places[at] = column;
  }
}

// A heap of columns of a row, in which a parent should not beat its children.
template <bool kSmallest>
struct Heap {
  const float *row;
  int64_t columns[COLLAGE_MOST_TOP_K];

  bool beats(int64_t one, int64_t other) const {
    const int64_t a = columns[one], b = columns[other];
    return better<kSmallest>(row[a], row[b]) || (row[a] == row[b] && a < b);
  }

  // Lets what is at a place of a heap of that size sink. Of two children the right one comes up in doubt.
  void sink(int64_t at, int64_t size) {
    for (int64_t left = 2 * at + 1; left < size; left = 2 * at + 1) {
      const int64_t right = left + 1;
      const bool beats_left = beats(at, left);
      int64_t up = left;
      if (right < size) {
        if (!beats_left && !beats(at, right)) return;
        if (!beats_left || !beats(right, left)) up = right;
      } else if (!beats_left) {
        return;
      }
      std::swap(columns[at], columns[up]);
      at = up;
    }
  }
};

template <bool kSmallest>
void choose_beside_nan(const Shape &s, const float *row, Chosen &chosen) {
  Heap<kSmallest> heap;
  heap.row = row;
  const int64_t count = s.chosen;
  for (int64_t column = 0; column < count; ++column) {
    heap.columns[count - 1 - column] = column;
    heap.sink(count - 1 - column, count);
  }
  for (int64_t column = count; column < s.columns; ++column) {
    if (!better<kSmallest>(row[column], row[heap.columns[0]])) continue;
    heap.columns[0] = column;
    heap.sink(0, count);
  }
  for (int64_t left = count - 1; left >= 0; --left) {
    chosen.places[left] = heap.columns[0];
    chosen.values[left] = row[heap.columns[0]];
    heap.columns[0] = heap.columns[left];
    heap.sink(0, left);
  }
}

bool has_nan(const float *row, int64_t columns) {
  bool found = false;
  for (int64_t column = 0; column < columns; ++column) found |= std::isnan(row[column]);
  return found;
}

template <bool kSmallest>
void choose_rows(const Shape &s, const Buffers &b, Range rows) {
  Chosen chosen;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float *data = b.data + row * s.columns;
    (has_nan(data, s.columns) ? choose_beside_nan<kSmallest> : choose<kSmallest>)(s, data, chosen);
    if (b.values) std::memcpy(b.values + row * s.chosen, chosen.values, s.chosen * sizeof(float));
    if (b.places) std::memcpy(b.places + row * s.chosen, chosen.places, s.chosen * sizeof(int64_t));
  }
}

}  // namespace

extern "C" int collage_top_k(void *a, void *b, intptr_t share, void *) {
  const auto &s = *static_cast<const Shape *>(a);
  const Range rows = part({0, s.rows}, share, s.shares);
  (s.smallest ? choose_rows<true> : choose_rows<false>)(s, *static_cast<const Buffers *>(b), rows);
  return 0;
}
