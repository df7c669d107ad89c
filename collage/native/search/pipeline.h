// The dynamic programs over pipelines (collage/graphpipe/planner.py, which describes them), as a library.
//
// Everything has C linkage and plain types, so that Python calls it through ctypes. A stage's sums are a row of doubles:
// seconds of its work at micro-batches of 1, 2, 4, ... samples (`tables` of them), then bytes of weights, bytes of state,
// bytes of activations a sample, bytes a sample and number of edges to other stages, and seconds of an update.

#ifndef COLLAGE_NATIVE_SEARCH_PIPELINE_H
#define COLLAGE_NATIVE_SEARCH_PIPELINE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Costs. Configurations are pairs of a micro-batch and k. Degree g is 2^g devices, and has its own ring link.
typedef struct {
  const int32_t *b, *k;                              // [configs]
  const double *ring_latency, *ring_bandwidth;       // [degrees]
  double memory, latency, bandwidth;
  int32_t mini_batch, devices, configs, degrees, tables;
  int32_t stop;  // not 0, at any time: end the search
} collage_pipe_costs;

// A series-parallel tree. Series s has units unit[s_first[s]] to unit[s_first[s + 1]]: -1 for an atom, else the first
// place of a parallel. The stage of its units r to p - 1 has the row of sums row[s_rows[s] + r * units + p - 1]. At each
// place is a child (the first child_end units of a series) or -1 after the last one; row[p_runs[place] + n] is for the stage of n children from there.
// A unit that is a parallel has variants v_first[unit] to v_first[unit + 1], in which a stage beside it has a part of one
// child: v_place is the parallel without that, v_after says if that stage is after it, and the stage that ends
// before unit p (after it) or begins at unit r (before it) has the row row[v_rows + p] or row[v_rows + r].
// s_same and p_same are the first series and place with equal costs; -1 is no row.
typedef struct {
  const int32_t *s_first, *unit, *s_rows, *s_same, *v_first, *v_place, *v_after, *v_rows, *child, *child_end;
  const int32_t *p_runs, *p_same;
  const int32_t *row;
  const double *sums;
  int32_t series, places, root, rows;
} collage_pipe_tree;

// A family of sets of blocks that are closed under predecessors, by size; the first one is empty, the last one full.
// Each is two words in `sets`. `sums` has rows for the sets (edges are left out). As a chain each stage follows the one
// before; else stages follow each other as the edges say.
typedef struct {
  const uint64_t *sets;                              // [count][2]
  const double *sums;
  const int32_t *source, *target;                    // [edges]
  const double *bytes;                               // [edges]
  int32_t count, edges, blocks, chain;
} collage_pipe_ideals;

// A stage found: its row of sums in a tree, or the pair of its sets (begin, end); its configuration, degree, in-flight
// samples.
typedef struct {
  int32_t row, begin, end, config, degree, in_flight;
} collage_pipe_stage;

// The stages of a plan with at most t_max seconds a sample on the given number of devices, that needs the fewest samples
// in flight at its source. Returns their count, 0 if there is none, -1 if there is no memory, -2 after `seconds`.
// `states` gets the number of states of the memo table.
int32_t collage_pipe_plan_tree(const collage_pipe_costs *costs, const collage_pipe_tree *tree, double t_max,
                               double seconds, collage_pipe_stage *stages, int32_t most, int64_t *states);
int32_t collage_pipe_plan_ideals(const collage_pipe_costs *costs, const collage_pipe_ideals *ideals, double t_max,
                                 double seconds, collage_pipe_stage *stages, int32_t most, int64_t *states);

#ifdef __cplusplus
}
#endif

#endif  // COLLAGE_NATIVE_SEARCH_PIPELINE_H
