// Soft trees on a block of rows: some trees for all rows, then the next ones, so that their weights stay in the first
// cache; see soft_trees.h.

#include "soft_trees.h"

#include "kernels.h"

#if COLLAGE_X86

#include <algorithm>
#include <numeric>

#include "lanes.h"

namespace {

using namespace collage;

constexpr int64_t kCache = 16 << 10;  // bytes of weights that are used at a time
constexpr int kTogether = 4;          // rows that share a load of a weight
constexpr int64_t kPointer = 2;       // the floats that it takes as much room as

int64_t filled(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// tanh, off by 2e-7 at most: near 0 it has no more digits than that. From e = 2^y, y = -2 |x| / ln 2 = n + r.
inline Floats bounded(Floats x) {
  const Floats one = broadcast(1.0f), y = max(broadcast(-60.0f), absolute(x) * broadcast(-2.88539008f));
  const Floats n = nearest(y), r = y - n;
  Floats p = broadcast(1.3276472e-3f);
  p = fma(p, r, broadcast(9.6755475e-3f));
  p = fma(p, r, broadcast(5.5507135e-2f));
  p = fma(p, r, broadcast(2.4022120e-1f));
  p = fma(p, r, broadcast(6.9314694e-1f));
  p = fma(p, r, broadcast(1.0000001f));
  const Floats e = scaled(p, n);
  return with_sign((one - e) * reciprocal(one + e), x);
}

struct Rows {
  const float *const *gathered;  // [row][table]
  const float *numbers;          // [row][number]
  float *nodes;                  // [row][node]
  float *sums;                   // [row][target][lane]
};

// Loops over ROWS are unrolled, or else their sums are not in registers.
template <int ROWS>
void add_trees(const collage_soft_trees &t, int64_t first, int64_t end, const Rows &of) {
  const int64_t nodes = filled(t.nodes), leaves = filled(t.leaves);
  for (int64_t tree = first; tree < end; ++tree) {
    for (int64_t n = 0; n < nodes; n += kLanes) {
      Floats z[ROWS];
      const Floats bias = load(t.bias + tree * nodes + n);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) {
        z[r] = bias;
        for (int64_t k = 0; k < t.tables; ++k) z[r] += load(of.gathered[r * t.tables + k] + tree * nodes + n);
      }
      const float *weight = t.weight + tree * t.numbers * nodes + n;
      for (int64_t i = 0; i < t.numbers; ++i, weight += nodes) {
        const Floats each = load(weight);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) z[r] = fma(each, broadcast(of.numbers[r * t.numbers + i]), z[r]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) store(of.nodes + r * nodes + n, bounded(z[r]));
    }
    for (int64_t l = 0; l < leaves; l += kLanes) {
      Floats leaf[ROWS];
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) leaf[r] = load(t.bend + tree * leaves + l);
      const float *path = t.path + tree * t.nodes * leaves + l;
      for (int64_t n = 0; n < t.nodes; ++n, path += leaves) {
        const Floats each = load(path);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) leaf[r] = fma(each, broadcast(of.nodes[r * nodes + n]), leaf[r]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) {
        const Floats reached = broadcast(1.0f) + bounded(leaf[r]);
        for (int64_t k = 0; k < t.targets; ++k) {
          float *const sums = of.sums + (r * t.targets + k) * kLanes;
          store(sums, fma(reached, load(t.value + (tree * t.targets + k) * leaves + l), load(sums)));
        }
      }
    }
  }
}

}  // namespace

extern "C" int64_t collage_soft_trees_work(const collage_soft_trees *t, int64_t rows) {
  return rows * (kPointer * t->tables + t->numbers + t->targets * kLanes) + kTogether * filled(t->nodes) + 3 * kLanes;
}

extern "C" void collage_soft_trees_sums(
    const collage_soft_trees *trees, const int64_t *const *code, const float *const *number, float *const *sums,
    int64_t rows, float *work) {
  const collage_soft_trees &t = *trees;
  const int64_t nodes = filled(t.nodes), leaves = filled(t.leaves);
  const float **const gathered = reinterpret_cast<const float **>(work);
  float *const numbers = work + filled(rows * t.tables * kPointer);
  float *const found = numbers + filled(rows * t.numbers), *const of_nodes = found + rows * t.targets * kLanes;
  for (int64_t k = 0; k < t.tables; ++k) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t place = code[k][row] >= 0 && code[k][row] < t.categories[k] ? code[k][row] : 0;
      gathered[row * t.tables + k] = t.table[k] + place * t.trees * nodes;
    }
  }
  for (int64_t i = 0; i < t.numbers; ++i)
    for (int64_t row = 0; row < rows; ++row) numbers[row * t.numbers + i] = number[i][row];
  std::fill(found, of_nodes, 0.0f);
  const int64_t tree_bytes = 4 * ((1 + t.numbers) * nodes + (t.nodes + 1 + t.targets) * leaves);
  const int64_t some = std::max<int64_t>(1, kCache / tree_bytes);
  for (int64_t first = 0; first < t.trees; first += some) {
    const int64_t end = std::min(first + some, t.trees);
    const auto from = [&](int64_t row) {
      return Rows{gathered + row * t.tables, numbers + row * t.numbers, of_nodes, found + row * t.targets * kLanes};
    };
    int64_t row = 0;
    for (; row + kTogether <= rows; row += kTogether) add_trees<kTogether>(t, first, end, from(row));
    for (; row < rows; ++row) add_trees<1>(t, first, end, from(row));
  }
  for (int64_t k = 0; k < t.targets; ++k) {
    for (int64_t row = 0; row < rows; ++row) {
      const float *const lanes = found + (row * t.targets + k) * kLanes;
      sums[k][row] = std::accumulate(lanes, lanes + kLanes, t.shift[k]);
    }
  }
}

#include "target_end.h"

#else

extern "C" int64_t collage_soft_trees_work(const collage_soft_trees *, int64_t) { return 0; }
extern "C" void collage_soft_trees_sums(
    const collage_soft_trees *, const int64_t *const *, const float *const *, float *const *, int64_t, float *) {}

#endif
