// Ensembles of trees on the bins of a block of rows, or of one row.
//
// A dense tree has no branches: every node is visited, for all rows of a register at once. A row begins at leaf 0. When
// a node is visited in pre-order, a row below it is at the node's first leaf, so that two comparisons and one move
// suffice. Leaf values are looked up byte by byte, since a register has a table of 64 bytes but of 16 floats only, and
// sums are kept in the order in which the bytes of a value come together.

#ifndef COLLAGE_NATIVE_KERNELS_TABLE_TREES_H
#define COLLAGE_NATIVE_KERNELS_TABLE_TREES_H

#include <string.h>

#include <algorithm>

#include "table.h"
#include "table_lanes.h"

namespace collage {

constexpr int kChains = 16;  // walks side by side

// The place of a row among sums: of each quarter of 16 rows, the registers' 128-bit lanes behind each other.
template <typename T>
inline int64_t place_of_sum(int64_t row) {
  constexpr int64_t kEach = 16 / sizeof(T), kLanesOf = kRows / 16;
  const int64_t begin = row / kRows * kRows, lane = row % kRows / 16, at = row % 16;
  return begin + at / kEach * (kEach * kLanesOf) + lane * kEach + at % kEach;
}

// Adds the values whose bytes are in `planes` at the positions.
COLLAGE_TABLE_INLINE void add_planes(float *sums, const uint8_t *planes, int64_t width, int64_t leaves, Bytes position) {
  Bytes b[4];
  for (int i = 0; i < 4; ++i) b[i] = looked_up(planes + i * width, leaves, position);
  const Bytes low[2] = {low_bytes(b[0], b[1]), low_bytes(b[2], b[3])};
  const Bytes high[2] = {high_bytes(b[0], b[1]), high_bytes(b[2], b[3])};
  add_to(sums, low_pairs(low[0], low[1]));
  add_to(sums + kRows / 4, high_pairs(low[0], low[1]));
  add_to(sums + kRows / 2, low_pairs(high[0], high[1]));
  add_to(sums + kRows / 4 * 3, high_pairs(high[0], high[1]));
}

COLLAGE_TABLE_INLINE void add_planes(double *sums, const uint8_t *planes, int64_t width, int64_t leaves, Bytes position) {
  Bytes fours[2][4];
  for (int half = 0; half < 2; ++half) {
    Bytes b[4];
    for (int i = 0; i < 4; ++i) b[i] = looked_up(planes + (4 * half + i) * width, leaves, position);
    const Bytes low[2] = {low_bytes(b[0], b[1]), low_bytes(b[2], b[3])};
    const Bytes high[2] = {high_bytes(b[0], b[1]), high_bytes(b[2], b[3])};
    fours[half][0] = low_pairs(low[0], low[1]);
    fours[half][1] = high_pairs(low[0], low[1]);
    fours[half][2] = low_pairs(high[0], high[1]);
    fours[half][3] = high_pairs(high[0], high[1]);
  }
  for (int i = 0; i < 4; ++i) {
    add_to(sums + kRows / 8 * (2 * i), low_fours(fours[0][i], fours[1][i]));
    add_to(sums + kRows / 8 * (2 * i + 1), high_fours(fours[0][i], fours[1][i]));
  }
}

// The same for more leaves than a table of bytes has.
template <typename T>
inline void add_values(T *sums, const T *values, Bytes position) {
  alignas(64) uint8_t at[kRows];
  store_bytes(at, position);
  for (int64_t row = 0; row < kRows; ++row) sums[place_of_sum<T>(row)] += values[at[row]];
}

template <typename T>
COLLAGE_TABLE_INLINE void add_leaves(
    const collage_table_trees &s, const collage_table_tree &tree, Bytes position, T *sums, int64_t row) {
  for (int64_t i = 0; i < tree.targets; ++i) {
    T *const to = sums + s.target[tree.target + i] * COLLAGE_TABLE_BLOCK + row;
    if (tree.leaves <= kMostPlanes) {
      const uint8_t *planes = s.plane + tree.planes + i * int64_t(sizeof(T)) * tree.width;
      add_planes(to, planes, tree.width, tree.leaves, position);
    } else {
      add_values(to, static_cast<const T *>(s.value) + tree.leaf + i * tree.leaves, position);
    }
  }
}

// Visits the nodes of TREES trees for WIDTH registers of rows.
template <int TREES, int WIDTH>
COLLAGE_TABLE_INLINE void visit(
    const collage_table_node *const *nodes, int64_t from, int64_t to, const int8_t *bins, Bytes (&position)[TREES][WIDTH]) {
  for (int64_t at = from; at < to; ++at) {
    for (int tree = 0; tree < TREES; ++tree) {
      const collage_table_node &node = nodes[tree][at];
      const int8_t *const column = bins + node.column;
      const Bytes bin = spread(uint8_t(node.bin)), first = spread(node.first), right = spread(node.right);
      for (int i = 0; i < WIDTH; ++i)
        position[tree][i] = moved(position[tree][i], load_bytes(column + kRows * i), bin, first, right);
    }
  }
}

template <typename T, int TREES, int WIDTH>
void dense(const collage_table_trees &s, const collage_table_tree *trees, const int8_t *bins, T *sums, int64_t row) {
  const collage_table_node *nodes[TREES];
  int64_t least = trees[0].nodes;
  Bytes position[TREES][WIDTH];
  for (int tree = 0; tree < TREES; ++tree) {
    nodes[tree] = s.node + trees[tree].node;
    least = trees[tree].nodes < least ? trees[tree].nodes : least;
    for (int i = 0; i < WIDTH; ++i) position[tree][i] = no_bytes();
  }
  visit<TREES, WIDTH>(nodes, 0, least, bins + row, position);
  for (int tree = 0; tree < TREES; ++tree) {
    Bytes rest[1][WIDTH];
    for (int i = 0; i < WIDTH; ++i) rest[0][i] = position[tree][i];
    visit<1, WIDTH>(nodes + tree, least, trees[tree].nodes, bins + row, rest);
    for (int i = 0; i < WIDTH; ++i) add_leaves(s, trees[tree], rest[0][i], sums, row + kRows * i);
  }
}

template <typename T, int WIDTH>
void symmetric(const collage_table_trees &s, const collage_table_tree &tree, const int8_t *bins, T *sums, int64_t row) {
  Bytes position[WIDTH];
  for (int i = 0; i < WIDTH; ++i) position[i] = no_bytes();
  for (int64_t level = 0; level < tree.nodes; ++level) {
    const collage_table_node &node = s.node[tree.node + level];
    const Bytes bin = spread(uint8_t(node.bin));
    for (int i = 0; i < WIDTH; ++i)
      position[i] = deeper(position[i], load_bytes(bins + row + node.column + kRows * i), bin);
  }
  for (int i = 0; i < WIDTH; ++i) add_leaves(s, tree, position[i], sums, row + kRows * i);
}

// WIDTH registers of rows at dense trees. Four chains of moves are what hides their latency, of rows or of trees.
template <typename T, int WIDTH>
void dense_run(const collage_table_trees &s, const collage_table_run &run, const int8_t *bins, T *sums, int64_t row) {
  constexpr int kTrees = 4 / WIDTH;
  int64_t tree = run.first;
  for (; tree + kTrees <= run.end; tree += kTrees) dense<T, kTrees, WIDTH>(s, s.tree + tree, bins, sums, row);
  for (; tree < run.end; ++tree) dense<T, 1, WIDTH>(s, s.tree + tree, bins, sums, row);
}

// A run of dense or symmetric trees on `rows` rows, a multiple of kRows.
template <typename T>
void visited(const collage_table_trees &s, const collage_table_run &run, const int8_t *bins, T *sums, int64_t rows) {
  if (run.kind == COLLAGE_SYMMETRIC) {
    for (int64_t tree = run.first; tree < run.end; ++tree) {
      int64_t row = 0;
      for (; row + 4 * kRows <= rows; row += 4 * kRows) symmetric<T, 4>(s, s.tree[tree], bins, sums, row);
      for (; row < rows; row += kRows) symmetric<T, 1>(s, s.tree[tree], bins, sums, row);
    }
    return;
  }
  int64_t row = 0;
  for (; row + 4 * kRows <= rows; row += 4 * kRows) dense_run<T, 4>(s, run, bins, sums, row);
  for (; row + 2 * kRows <= rows; row += 2 * kRows) dense_run<T, 2>(s, run, bins, sums, row);
  if (row < rows) dense_run<T, 1>(s, run, bins, sums, row);
}

// Walks from these nodes to leaves, at most `depth` levels. `x(chain, column)` is what a chain of walks compares.
template <typename T, typename X>
COLLAGE_TABLE_INLINE void walk(const collage_table_walk *nodes, uint32_t (&at)[kChains], int64_t depth, const X &x) {
  for (int64_t level = 0; level < depth; ++level) {
    uint32_t changed = 0;
    for (int chain = 0; chain < kChains; ++chain) {
      const collage_table_walk &node = nodes[at[chain]];
      const T threshold = sizeof(T) == 4 ? T(node.threshold.narrow) : T(node.threshold.wide);
      const uint32_t next = node.left + uint32_t(x(chain, node.column) > threshold);
      changed |= next ^ at[chain];
      at[chain] = next;
    }
    if (!changed) return;
  }
}

template <typename T, typename X>
void walked(
    const collage_table_trees &s, const collage_table_tree &tree, const X *const *columns, T *sums, int64_t rows) {
  for (int64_t row = 0; row < rows; row += kChains) {
    uint32_t at[kChains];
    for (uint32_t &each : at) each = uint32_t(tree.root);
    walk<X>(s.walk, at, tree.depth, [&](int chain, uint32_t column) { return columns[column][row + chain]; });
    for (int64_t i = 0; i < tree.targets; ++i) {
      const T *const values = static_cast<const T *>(s.value) + tree.leaf + i * tree.leaves;
      T *const to = sums + s.target[tree.target + i] * COLLAGE_TABLE_BLOCK;
      for (int chain = 0; chain < kChains; ++chain) to[place_of_sum<T>(row + chain)] += values[s.leaf[at[chain]]];
    }
  }
}

// One row: trees side by side, in groups whose trees have as many nodes.

// The bins of a row as a table. LEVELS: the logarithm of the number of registers' worth of columns.
template <int LEVELS>
struct Table {
#ifdef COLLAGE_AVX2
  static constexpr int64_t kPart = 16;
#else
  static constexpr int64_t kPart = 64;
#endif
  Bytes part[1 << LEVELS];

  Table(const int8_t *bins, int64_t columns) {
    for (int64_t i = 0; i < 1 << LEVELS; ++i) {
      const int8_t *const from = bins + kPart * i;
#ifdef COLLAGE_AVX2
      const __m128i each = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
      part[i] = kPart * i < columns ? _mm256_broadcastsi128_si256(each) : no_bytes();
#else
      part[i] = kPart * i < columns ? load_bytes(from) : no_bytes();
#endif
    }
  }

#ifdef COLLAGE_AVX2
  // The halves of the table by a bit of the place, from the highest one on.
  template <int LEVEL, int FIRST>
  COLLAGE_TABLE_INLINE Bytes half(Bytes low, const Bytes *bit) const {
    if constexpr (LEVEL == 0) {
      return _mm256_shuffle_epi8(part[FIRST], low);
    } else {
      const Bytes one = half<LEVEL - 1, FIRST>(low, bit);
      return _mm256_blendv_epi8(one, half<LEVEL - 1, FIRST + (1 << (LEVEL - 1))>(low, bit), bit[LEVEL - 1]);
    }
  }

  COLLAGE_TABLE_INLINE Bytes operator()(const uint8_t *at, int64_t) const {
    const Bytes columns = load_bytes(at);
    const Bytes bit[4] = {_mm256_slli_epi16(columns, 3), _mm256_slli_epi16(columns, 2), _mm256_slli_epi16(columns, 1),
                          columns};
    return half<LEVELS, 0>(LEVELS < 4 ? columns : _mm256_and_si256(columns, spread(15)), bit);
  }
#else
  COLLAGE_TABLE_INLINE Bytes operator()(const uint8_t *at, int64_t) const {
    const Bytes columns = load_bytes(at);
    if constexpr (LEVELS == 0) {
      return _mm512_permutexvar_epi8(columns, part[0]);
    } else {
      const Bytes low = _mm512_permutex2var_epi8(part[0], columns, part[1]);
      if constexpr (LEVELS == 1) {
        return low;
      } else {
        const Bytes high = _mm512_permutex2var_epi8(part[2], columns, part[3]);
        return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(columns), high);
      }
    }
  }
#endif
};

// The bins of a row of more columns, which were put in the order of the lanes.
struct Ordered {
  const uint8_t *bins;

  COLLAGE_TABLE_INLINE Bytes operator()(const uint8_t *, int64_t place) const { return load_bytes(bins + place); }
};

// The values of lanes that were found before, which are added one by one, in order: a chain of additions is as long as
// the steps of a group, so that each step takes some of them along.
template <typename T>
struct Chain {
  const T *values;
  const int32_t *first;
  const uint8_t *places;
  int64_t at, end;
  T sum;

  template <int MOST>
  COLLAGE_TABLE_INLINE void add() {
    if (at + MOST <= end) {
      for (int i = 0; i < MOST; ++i) sum += values[first[at + i] + places[at + i]];
      at += MOST;
    } else {
      for (; at < end; ++at) sum += values[first[at] + places[at]];
    }
  }
};

struct NoChain {
  int64_t end = 0;

  template <int>
  void add() {}
};

// The leaves of GROUPS groups of one kind.
template <int GROUPS, typename Row, typename C>
COLLAGE_TABLE_INLINE C lanes_of(
    const uint8_t *bytes, const collage_table_group *group, const Row &row, uint8_t *places, C chain) {
  constexpr int64_t kAll = COLLAGE_TABLE_LANES, kParts = kAll / kRows;
  const bool symmetric = group[0].kind == COLLAGE_SYMMETRIC;
  Bytes position[GROUPS][kParts];
  const uint8_t *step[GROUPS];
  int64_t steps = 0, place[GROUPS];
  for (int g = 0; g < GROUPS; ++g) {
    for (Bytes &each : position[g]) each = no_bytes();
    step[g] = bytes + group[g].begin;
    steps = group[g].steps;
    place[g] = group[g].begin / (symmetric ? 2 : 4);
  }
  if (symmetric) {
    for (int64_t i = 0; i < steps; ++i) {
      for (int g = 0; g < GROUPS; ++g, step[g - 1] += 2 * kAll)
        for (int64_t k = 0; k < kParts; ++k) {
          const uint8_t *const at = step[g] + k * kRows;
          position[g][k] = deeper(position[g][k], row(at, place[g] + i * kAll + k * kRows), load_bytes(at + kAll));
        }
      chain.template add<16 * GROUPS>();
    }
  } else {
    for (int64_t i = 0; i < steps; ++i) {
      for (int g = 0; g < GROUPS; ++g, step[g - 1] += 4 * kAll)
        for (int64_t k = 0; k < kParts; ++k) {
          const uint8_t *const at = step[g] + k * kRows;
          const Bytes bins = row(at, place[g] + i * kAll + k * kRows), limit = load_bytes(at + kAll);
          position[g][k] = moved(position[g][k], bins, limit, load_bytes(at + 2 * kAll), load_bytes(at + 3 * kAll));
        }
      chain.template add<3 * GROUPS>();
    }
  }
  for (int g = 0; g < GROUPS; ++g)
    for (int64_t k = 0; k < kParts; ++k) store_bytes(places + g * kAll + k * kRows, position[g][k]);
  return chain;
}

// The leaves of all groups, two at a time where these have as many steps.
template <typename Row, typename C>
C lanes_by(const collage_table_trees &s, const Row &row, uint8_t *places, C chain) {
  for (int64_t i = 0; i < s.groups;) {
    const bool pair = i + 1 < s.groups && s.group[i].steps == s.group[i + 1].steps;
    uint8_t *const to = places + i * COLLAGE_TABLE_LANES;
    chain = pair ? lanes_of<2>(s.lanes, s.group + i, row, to, chain) : lanes_of<1>(s.lanes, s.group + i, row, to, chain);
    i += pair ? 2 : 1;
    chain.end = std::min(i * COLLAGE_TABLE_LANES, s.trees);
  }
  return chain;
}

template <int LEVELS, typename C>
C table_lanes(const collage_table_trees &s, const int8_t *bins, uint8_t *places, C chain) {
  return lanes_by(s, Table<LEVELS>(bins, s.bin_columns), places, chain);
}

// `places` has room for the lanes of all groups, and behind them, if there is `ordered`, for the bins in their order.
template <typename C>
inline C all_lanes(const collage_table_trees &s, const int8_t *bins, uint8_t *places, C chain) {
  if (s.ordered != nullptr) {
    uint8_t *const found = places + s.groups * COLLAGE_TABLE_LANES;
    for (int64_t i = 0; i < s.lane_steps * COLLAGE_TABLE_LANES; ++i) found[i] = uint8_t(bins[s.ordered[i]]);
    return lanes_by(s, Ordered{found}, places, chain);
  }
  constexpr int64_t kPart = Table<0>::kPart;
  if (s.bin_columns <= kPart) return table_lanes<0>(s, bins, places, chain);
  if (s.bin_columns <= 2 * kPart) return table_lanes<1>(s, bins, places, chain);
#ifdef COLLAGE_AVX2
  if (s.bin_columns <= 4 * kPart) return table_lanes<2>(s, bins, places, chain);
  return s.bin_columns <= 8 * kPart ? table_lanes<3>(s, bins, places, chain) : table_lanes<4>(s, bins, places, chain);
#else
  return table_lanes<2>(s, bins, places, chain);
#endif
}

// The sums of one row, in the order of the trees. `number` is what walked trees compare; `places` has room for the leaf
// of each tree, and for what all_lanes needs.
template <typename T, typename X, typename Number>
void single(const collage_table_trees &s, const int8_t *bins, const Number &number, T *sums, uint32_t *places) {
  uint8_t *const lanes = reinterpret_cast<uint8_t *>(places + s.trees);
  const T *const values = static_cast<const T *>(s.value);
  if (s.first_leaf != nullptr) {
    Chain<T> chain{values, s.first_leaf, lanes, 0, 0, sums[s.target[0]]};
    chain = all_lanes(s, bins, lanes, chain);
    while (chain.at < chain.end) chain.template add<8>();
    sums[s.target[0]] = chain.sum;
    return;
  }
  if (s.groups > 0) all_lanes(s, bins, lanes, NoChain());
  for (int64_t i = 0; i < s.trees; ++i)
    if (s.lane_of[i] >= 0) places[i] = lanes[s.lane_of[i]];
  for (int64_t i = 0; i < s.single_runs; ++i) {
    const collage_table_run &run = s.single_run[i];
    for (int64_t tree = run.first; tree < run.end; tree += kChains) {
      uint32_t at[kChains];
      int64_t depth = 0;
      for (int64_t chain = 0; chain < kChains; ++chain) {
        const collage_table_tree &each = s.tree[tree + chain < run.end ? tree + chain : tree];
        at[chain] = uint32_t(each.root);
        depth = each.depth > depth ? each.depth : depth;
      }
      walk<X>(s.walk, at, depth, [&](int, uint32_t column) { return number(column); });
      for (int64_t chain = 0; chain < kChains && tree + chain < run.end; ++chain)
        places[tree + chain] = s.leaf[at[chain]];
    }
  }
  for (int64_t i = 0; i < s.trees; ++i) {
    const collage_table_tree &tree = s.tree[i];
    for (int64_t k = 0; k < tree.targets; ++k)
      sums[s.target[tree.target + k]] += values[tree.leaf + k * tree.leaves + places[i]];
  }
}

}  // namespace collage
#endif
