// Two layers for each of many trees: tanh of gathered rows and a product, tanh of a small product, and a sum.

#ifndef COLLAGE_NATIVE_KERNELS_SOFT_TREES_H
#define COLLAGE_NATIVE_KERNELS_SOFT_TREES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// In the arrays the nodes and the leaves of a tree are filled up to multiples of 16.
typedef struct {
  int64_t trees, nodes, leaves, targets;
  int64_t numbers, tables;
  const float *const *table;  // [tables][categories][trees][nodes]
  const int64_t *categories;  // [tables]; of a code outside, the first row
  const float *weight;        // [trees][numbers][nodes]
  const float *bias;          // [trees][nodes]
  const float *path;          // [trees][nodes, not filled up][leaves]
  const float *bend;          // [trees][leaves]
  const float *value;         // [trees][targets][leaves]: what (1 + leaf) is multiplied with
  const float *shift;         // [targets]
} collage_soft_trees;

// The floats that `work` has for so many rows, aligned to 64 bytes.
int64_t collage_soft_trees_work(const collage_soft_trees *t, int64_t rows);

// sums[target][row] of columns: code[table][row], number[number][row].
void collage_soft_trees_sums(
    const collage_soft_trees *t, const int64_t *const *code, const float *const *number, float *const *sums,
    int64_t rows, float *work);

#ifdef __cplusplus
}
#endif
#endif
