// The walk of the dynamic program over covers (collage/search/dp.py, which tells what it does), as a library.
//
// Everything has C linkage and plain types, so that Python calls it through ctypes. Weights and costs are integers of 128
// bits, in two words each, the low one first. Masks are words of 64 bits, the low ones first.

#ifndef COLLAGE_NATIVE_SEARCH_COVER_H
#define COLLAGE_NATIVE_SEARCH_COVER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// An option. Its masks are in `words`, from `mask` and `reaches` on (`mask_words` and `reach_words` of them; a tight one
// has no `reach_words`). Its ports are in `ports`: from `port` on, `reads` values that it reads, then `writes` that it
// writes. `has_ports` is 0 where no value that matters is read or written.
typedef struct {
  uint64_t weight[2];
  int64_t mask, reaches, port;
  int32_t mask_words, reach_words, reads, writes, has_ports, unused;
} collage_option;

// A value that matters, and the number of the storage that it is read or written in.
typedef struct {
  int32_t value, storage;
} collage_port;

// A value that matters: the position of its writer (-1 for an input), the last position that touches it, how many storages
// it has, where its table of costs begins, and whether it is an output of the graph.
typedef struct {
  int64_t costs;
  int32_t writer, last, storages, is_output;
} collage_value;

// What is walked. The options of position p are those from first[p] to first[p + 1]. The costs of a value are a square
// table, from the storage of the row to that of the column.
typedef struct {
  const int64_t *first;
  const collage_option *options;
  const uint64_t *words;
  const collage_port *ports;
  const collage_value *values;
  const uint64_t *costs;
  int64_t positions, most_states;
} collage_cover;

typedef struct collage_walk collage_walk;

// A walk over the cover problem, which must outlive it. NULL where there is no memory.
collage_walk *collage_walk_begin(const collage_cover *cover);

// Visit the next position. Returns 1 when the end is reached, 0 when there are more, and -1 where there is no memory.
int collage_walk_on(collage_walk *walk);

// After the end: the numbers of the options of the cheapest cover, the last one first, and their count; -1 where there is
// none. *exact tells whether no state was dropped, *reached is the last position that had a state.
int64_t collage_walk_found(const collage_walk *walk, int64_t *options, int64_t most, int *exact, int64_t *reached);

void collage_walk_end(collage_walk *walk);

#ifdef __cplusplus
}
#endif

#endif  // COLLAGE_NATIVE_SEARCH_COVER_H
