// Programs of operators that map rows to rows: encoders, scalers, linear models and ensembles of trees.
//
// A program runs on blocks of rows. Within a block the values are columns: a column whose elements have `w` bytes is at
// `workspace + offset * rows`, and the next column's offset is greater by `w`. A block has room for COLLAGE_TABLE_BLOCK
// rows, or for one row.

#ifndef COLLAGE_NATIVE_KERNELS_TABLE_H
#define COLLAGE_NATIVE_KERNELS_TABLE_H

#include <stdint.h>

#include "soft_trees.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  COLLAGE_TABLE_BLOCK = 256,   // rows
  COLLAGE_TABLE_LANES = 64,    // trees side by side, for one row
  COLLAGE_TABLE_CHUNK = 16     // thresholds of a column that one row is compared with at a time
};

enum collage_table_type { COLLAGE_F32, COLLAGE_F64, COLLAGE_I64, COLLAGE_I32, COLLAGE_U8 };

// What a step does. `in` and `out` are columns; a step reads `data`, `sizes` and `kinds` as its line says.
enum collage_table_op {
  COLLAGE_TABLE_LOAD,       // in: the columns of input sizes[0], which has sizes[1] of them, of type kinds[0]
  COLLAGE_TABLE_STORE,      // to output sizes[0], which has sizes[1] columns, of type kinds[0]
  COLLAGE_TABLE_CONVERT,    // from type kinds[0] to kinds[1]
  COLLAGE_TABLE_BINS,       // float32 or float64 to bins: data[0]: collage_table_bins
  COLLAGE_TABLE_TREES,      // sums of trees: data[0]: collage_table_trees
  COLLAGE_TABLE_MEMBER,     // 1 if x is among the sizes[0] numbers at data[0], in order, or NaN and sizes[1]; or else 0. If
                            // these are whole numbers below sizes[2], bits at data[1] say which
  COLLAGE_TABLE_UNARY,      // function kinds[1]
  COLLAGE_TABLE_BINARY,     // operator kinds[1] of two columns
  COLLAGE_TABLE_CONSTANT,   // operator kinds[1] of a column and a number of data[0] for each column
  COLLAGE_TABLE_MAP,        // data[1][i] if x is number i of the sizes[0] at data[0], in order; [sizes[0]] for others; [sizes[1]] for NaN
  COLLAGE_TABLE_NORMALIZE,  // rows by kinds[1]: their maximum, the sum of absolute values, or the norm
  COLLAGE_TABLE_LINEAR,     // data[0]: [out][in], data[1]: [out]
  COLLAGE_TABLE_VECTORS,    // kernel kinds[1] with support vectors data[0]: [out][in], data[1]: gamma, coef0, degree
  COLLAGE_TABLE_REDUCE,     // kinds[1] of the columns
  COLLAGE_TABLE_SOFTMAX,    // of a row; kinds[1]: 1 to leave out zeros
  COLLAGE_TABLE_LARGEST,    // the place of the first largest number of a row, i64
  COLLAGE_TABLE_SELECT,     // the second column where the first is not 0, or else the third
  COLLAGE_TABLE_GATHER,     // for each column data[0][code], of sizes[0] numbers [column][code]; the first one for codes outside
  COLLAGE_TABLE_SOFT        // data[0]: collage_soft_trees; the columns of its codes, and those of its numbers
};

enum collage_table_unary {
  COLLAGE_LOGISTIC, COLLAGE_PROBIT, COLLAGE_NEGATIVE, COLLAGE_ABSOLUTE, COLLAGE_EXP, COLLAGE_LOG, COLLAGE_SQRT,
  COLLAGE_TANH, COLLAGE_FLOOR, COLLAGE_CEIL, COLLAGE_IS_NAN, COLLAGE_NOT, COLLAGE_NAN_HIGH
};

// Operators 6 to 12 give int64.
enum collage_table_binary {
  COLLAGE_ADD, COLLAGE_SUBTRACT, COLLAGE_MULTIPLY, COLLAGE_DIVIDE, COLLAGE_MINIMUM, COLLAGE_MAXIMUM, COLLAGE_EQUAL,
  COLLAGE_GREATER, COLLAGE_GREATER_EQUAL, COLLAGE_LESS, COLLAGE_LESS_EQUAL, COLLAGE_AND, COLLAGE_OR, COLLAGE_POWER,
  COLLAGE_IMPUTE,        // the number where x is NaN, or else x
  COLLAGE_DIVIDED_BY,    // the number / x
  COLLAGE_TO_THE_POWER,  // the number to the power x
  COLLAGE_CONSTANT_OF    // the number
};

enum collage_table_reduce { COLLAGE_SUM, COLLAGE_MEAN, COLLAGE_LEAST, COLLAGE_MOST, COLLAGE_PRODUCT };
enum collage_table_norm { COLLAGE_BY_MAXIMUM, COLLAGE_BY_SUM, COLLAGE_BY_NORM };
enum collage_table_vectors { COLLAGE_DOT, COLLAGE_POLYNOMIAL, COLLAGE_RADIAL, COLLAGE_SIGMOID };

typedef struct {
  int32_t op, ins, outs, only;  // only: 1 for blocks, 2 for single rows
  int32_t kinds[2];
  const int32_t *in, *out;  // offsets of columns; of an input, the numbers of its columns
  const void *data[2];
  int64_t sizes[3];
} collage_table_step;

// The bin of x is the number of thresholds below x, less 128; NaN is above all where `high`, or else below. A column of
// bins has 2^levels - 1 thresholds, filled up with infinity, from its `begin` on: `sorted`, at least
// COLLAGE_TABLE_CHUNK, with the last one of each chunk at `last`, COLLAGE_TABLE_CHUNK of them for each column; and
// `search`, the next lower floats, as a tree whose level l begins at 2^l.
typedef struct {
  const void *sorted, *last;  // float or double, as the columns
  const float *search;
  const int32_t *levels, *high;
  const int64_t *begin;
} collage_table_bins;

// A node of a dense tree: if the row is at leaf `first`, the first one below the node, and its bin is above `bin`, it
// goes to leaf `right`, the first one below the right child. Nodes are in pre-order, leaves from left to right.
typedef struct {
  uint32_t column;  // of bins, times COLLAGE_TABLE_BLOCK
  int8_t bin;
  uint8_t first, right, unused;
} collage_table_node;

// A node of a walked tree. A leaf is its own left child, and its threshold is infinity.
typedef struct {
  union {
    float narrow;
    double wide;
  } threshold;
  uint32_t column;  // among the float columns
  uint32_t left;    // the right child follows
} collage_table_walk;

// COLLAGE_DENSE: all nodes are visited. COLLAGE_SYMMETRIC: all nodes of a level are alike, and one of each is visited.
// COLLAGE_WALKED: from the root to a leaf.
enum collage_table_kind { COLLAGE_DENSE, COLLAGE_SYMMETRIC, COLLAGE_WALKED };

typedef struct {
  int64_t node, nodes;      // dense nodes: the first one and their number, or the number of levels of a symmetric tree
  int64_t root, depth;      // the first walked node, and the most levels below it
  int64_t leaf, leaves;     // the first leaf among the values of all trees, and their number
  int64_t planes, width;    // where the bytes of the values begin; the bytes of a plane
  int64_t target, targets;  // places in `target`
} collage_table_tree;

typedef struct {
  int64_t kind, first, end;
} collage_table_run;  // consecutive trees

typedef struct {
  int64_t kind, steps, begin;  // bytes at `lanes`
} collage_table_group;         // COLLAGE_TABLE_LANES trees, or fewer in the last one

typedef struct {
  int64_t trees, bins, bin_columns;  // `bins`: offset of the first column of bins
  int64_t runs, single_runs, groups, lane_steps, input, width;
  const collage_table_run *run;         // of blocks
  const collage_table_run *single_run;  // of one row: the trees that are in no group
  const collage_table_group *group;     // of one row
  const collage_table_tree *tree;
  const collage_table_node *node;
  const collage_table_walk *walk;
  const uint32_t *leaf;       // of a walked node, its number in its tree
  const void *value;          // [tree][target of the tree][leaf], float or double as the sums
  const uint8_t *plane;       // [tree][target of the tree][byte][leaf]
  const int32_t *target;      // columns of sums
  const uint8_t *lanes;       // [group][step]: columns, bins, first and right leaves of COLLAGE_TABLE_LANES trees
  const int32_t *ordered;     // [lane_steps][lane]: columns, if they are more than a byte can tell; or else NULL
  const int32_t *lane_of;     // a tree's place among the lanes of all groups, in order; -1 for one that is walked
  // If one row walks on the model's input itself: the elements of the row that the float columns are, or ~element where
  // NaN is infinity, the input's number, and its elements a row. Otherwise NULL.
  const int32_t *direct;
  const int32_t *first_leaf;  // the first value of each lane; NULL if a tree is walked, or has another target than the others
} collage_table_trees;

typedef struct {
  int64_t count;
  const collage_table_step *steps;
  int64_t row_bytes;      // of all columns
  int64_t scratch_bytes;  // what steps work in besides
  int64_t singly;         // the most rows that run one by one
} collage_table_program;

typedef struct {
  const void *const *inputs;  // rows behind each other
  void *const *outputs;
  int64_t rows;
  int64_t shares;  // callers of collage_table
  int64_t turn;    // the rows of a block, at most COLLAGE_TABLE_BLOCK
  int64_t next;    // the next row; 0 before a call and after it
  int64_t done;    // callers that have returned; 0 before a call and after it
} collage_table_call;

// a: collage_table_program, b: collage_table_call. The callers of one call take blocks in turn; when one of them
// returns, no block is left to take. Returns 0, or COLLAGE_UNAVAILABLE without memory.
int collage_table(void *a, void *b, intptr_t share, void *c);

// The same, by one caller, for all rows from the first on.
int collage_table_alone(void *a, void *b, intptr_t share, void *c);

// The rows of a register of this library's programs, or 0 if the processor lacks their instructions.
int collage_table_rows(void);

#ifdef __cplusplus
}
#endif
#endif
