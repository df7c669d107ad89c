// The plan of attention: which items and merges an iteration has.
//
// An item is a tile of rows (tokens times the heads that share a K/V head) against a part of the sequence. Where each
// K/V head has few rows, an item has several of these heads, which lie beside each other in memory: long runs are read
// faster than short ones. How a sequence is split depends on its length alone, so that a request gets the same sums
// whatever runs beside it.

#include <algorithm>

#include "attention_items.h"
#include "kernels.h"

namespace {

using namespace collage_attention;

constexpr int64_t kSplitBlocks = 8;  // of a part of the sequence
constexpr int64_t kWhole = 8;        // tokens from which on a slice has items enough, and sequences are not split
constexpr int64_t kPieces = 8;       // items for each thread, where streams have as many parts of K/V heads

// The items and merges of a batch, counted, and written where there is room.
class Planner {
 public:
  Planner(const Shape &s, Batch &batch) : s_(s), batch_(batch) {
    batch.item_count = batch.merge_count = batch.partial_count = 0;
    int64_t parts = 0;
    for (int64_t i = 0; i < batch.requests; ++i)
      if (tokens(i) < kWhole) parts += parts_of(seen(i, batch.start[i] + tokens(i) - 1));
    together_ = parts * s.kv_heads / (kPieces * s.threads);
  }

  void request(int64_t number) {
    const int64_t count = tokens(number), group = s_.heads / s_.kv_heads;
    const int64_t heads = std::min(group, kRows), most = std::max<int64_t>(1, kRows / heads);
    const int64_t together = kv_heads_for(number);
    for (int64_t kv = 0; kv < s_.kv_heads; kv += together)
      for (int64_t head = 0; head < group; head += heads)
        for (int64_t token = 0; token < count; token += most) {
          Item item{};
          item.request = number;
          item.token = token;
          item.tokens = std::min(most, count - token);
          item.head = kv * group + head;
          item.heads = std::min(heads, group - head);
          item.kv_heads = std::min(together, s_.kv_heads - kv);
          tile(item, count < kWhole);
        }
  }

 private:
  int64_t tokens(int64_t request) const { return batch_.first[request + 1] - batch_.first[request]; }

  // The K/V heads of an item: so many that items are not fewer than there should be, and their rows fit.
  int64_t kv_heads_for(int64_t request) const {
    const int64_t count = tokens(request), rows = count * (s_.heads / s_.kv_heads);
    if (count >= kWhole) return 1;
    const int64_t most = std::max<int64_t>(1, std::min({together_, kRows / std::max<int64_t>(1, rows), s_.kv_heads}));
    const int64_t items = (s_.kv_heads + most - 1) / most;
    return (s_.kv_heads + items - 1) / items;
  }

  // The parts of a sequence with so many blocks.
  static int64_t parts_of(int64_t blocks) { return (blocks + kSplitBlocks - 1) / kSplitBlocks; }

  void tile(Item item, bool split) {
    const int64_t blocks = seen(item.request, batch_.start[item.request] + item.token + item.tokens - 1);
    if (!blocks) return;  // other processes hold what these rows see
    const int64_t splits = split ? parts_of(blocks) : 1;
    if (splits > 1 && batch_.merge_count++ < batch_.merge_capacity)
      batch_.merges[batch_.merge_count - 1] = {batch_.item_count, splits};
    for (int64_t i = 0; i < splits; ++i) {
      item.block = blocks * i / splits;
      item.block_end = blocks * (i + 1) / splits;
      item.partial = splits > 1 ? batch_.partial_count : -1;
      if (splits > 1) batch_.partial_count += rows_of_one(item) * item.kv_heads * (kHead + value_width(s_));
      if (batch_.item_count++ < batch_.item_capacity) batch_.items[batch_.item_count - 1] = item;
    }
  }

  // The blocks of a request here that a token at this position sees.
  int64_t seen(int64_t request, int64_t position) const {
    const int64_t last = position / kBlock;
    if (!batch_.places) return last + 1;
    const int32_t *const from = batch_.places + batch_.table[request], *const to = batch_.places + batch_.table[request + 1];
    return std::upper_bound(from, to, last) - from;
  }

  const Shape &s_;
  Batch &batch_;
  int64_t together_;  // the K/V heads of an item, as far as the number of items is concerned
};

}  // namespace

extern "C" int collage_attention_sizes(void *sizes, void *) {
  int64_t *const to = static_cast<int64_t *>(sizes);
  to[0] = sizeof(collage_attention_shape);
  to[1] = sizeof(collage_attention_batch);
  to[2] = sizeof(collage_attention_partials);
  return 0;
}

extern "C" int collage_attention_plan(const collage_attention_shape *shape, collage_attention_batch *batch) {
  if (shape->dim > kMostDim || shape->value_dim > kMostDim) return COLLAGE_UNAVAILABLE;
  Planner planner(*shape, *batch);
  for (int64_t i = 0; i < batch->requests; ++i) planner.request(i);
  return batch->item_count > batch->item_capacity || batch->merge_count > batch->merge_capacity ||
         batch->partial_count > batch->partial_capacity;
}
