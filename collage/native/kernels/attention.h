// Attention of packed tokens over a paged cache of keys and values; see attention.cpp and attention_plan.cpp.

#ifndef COLLAGE_NATIVE_KERNELS_ATTENTION_H
#define COLLAGE_NATIVE_KERNELS_ATTENTION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COLLAGE_ATTENTION_BLOCK = 32 };  // tokens of a block of the cache
enum { COLLAGE_CELLS_FLOAT32, COLLAGE_CELLS_BFLOAT16, COLLAGE_CELLS_INT8 };  // what a cache holds

// The heads of a model. Head h reads K/V head h / (heads / kv_heads). Heads of q and k have `dim` elements, and those of
// v and of the output `value_dim`. Of each head of q and k the first `rotary` elements are rotated by the position of
// their token: pairs (2i, 2i + 1) where `interleaved`, else (i, i + rotary / 2). The rows are the distances of tokens, in
// floats.
typedef struct {
  int64_t heads, kv_heads, dim, value_dim;
  int64_t rotary, interleaved;
  int64_t q_row, k_row, v_row, out_row;
  int64_t threads;
  int64_t cells;  // what the cache holds, rounded to the nearest
  float scale;
  float softcap;   // scores x become softcap * tanh(x / softcap); 0 for none
  int64_t window;  // the tokens that a token sees, itself among them; 0 for all before it
  // Whether the output is partial results, since other processes hold other blocks of the sequences: m, s and o, which
  // is not divided by s, of each head one after another. Rows that see no block here are not written.
  int64_t partial;
} collage_attention_shape;

// Work for one thread: the rows of q that read `kv_heads` K/V heads, `heads` from `head` on for each of them, times
// `tokens` from `token` on; and blocks [block, block_end) of the request. A row's partial result goes to `partial` (in
// floats), or, where it is -1, the finished one goes to the output.
typedef struct {
  int64_t request, token, tokens, head, heads, kv_heads, block, block_end, partial;
} collage_attention_item;

// Rows whose partial results are merged: those of `splits` items, the first of which is `item`.
typedef struct {
  int64_t item, splits;
} collage_attention_merge;

// The requests of an iteration. Those of `requests` have rows [first[i], first[i + 1]) of the tokens, the first of which
// is at position start[i] of its sequence, whose blocks are tables[table[i]] and those that follow. The rest is the
// plan's. A process that holds some of a sequence's blocks only lists those, and gives `places` and `stored`.
typedef struct {
  int64_t requests;
  const int64_t *first, *start, *table;
  const int32_t *tables;
  collage_attention_item *items;
  collage_attention_merge *merges;
  float *partials;
  int64_t item_capacity, merge_capacity, partial_capacity;
  int64_t item_count, merge_count, partial_count;  // as many as are needed
  int64_t next;  // the first item that no thread has taken
  const int32_t *places;  // which block of its sequence each of `tables` is, ascending; NULL for the first, second, ...
  const int32_t *stored;  // the block to which each row's k and v are written, or -1 for none; NULL for that in tables
} collage_attention_batch;

typedef struct {
  const float *q, *k, *v;
  void *keys;               // [block][kv_head][dim][32]
  void *values;             // [block][kv_head][32][value_dim rounded up to 16]
  const float *cos, *sin;   // [position][rotary / 2]
  float *out;               // heads beside each other
  const float *slopes;      // [head] what a score loses for each token between q and k; NULL for nothing
  const float *sinks;       // [head] a score beside those of the keys, which has no value; NULL for none
  float *scales;            // [block][kv_head][2][32] those of keys and of values, with which 8-bit cells are multiplied
  collage_attention_batch *batch;
} collage_attention_buffers;

// Partial results of several processes, to be merged: `count` of [row][head][2 + value_dim], `apart` floats from each
// other.
typedef struct {
  const float *partials;
  float *out;  // heads beside each other
  const float *sinks;  // as above
  int64_t rows, count, apart;
} collage_attention_partials;

// Writes the bytes of a shape, a batch and partial results, by which callers tell whether they have the same structs.
int collage_attention_sizes(void *sizes, void *);

// Divides the batch into items. Returns 0, or 1 where something is too small; the counts tell what is needed.
int collage_attention_plan(const collage_attention_shape *shape, collage_attention_batch *batch);

// Tasks of a layer, to be run one after another, each by `threads` threads with their number as n.
// a: collage_attention_shape, b: collage_attention_buffers.
int collage_attention_store(void *a, void *b, intptr_t n, void *c);    // rotates k, and writes k and v to the cache
int collage_attention_attend(void *a, void *b, intptr_t n, void *c);   // the items
int collage_attention_finish(void *a, void *b, intptr_t n, void *c);   // the merges

// Merges what processes have found. a: collage_attention_shape, b: collage_attention_partials.
int collage_attention_combine(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
