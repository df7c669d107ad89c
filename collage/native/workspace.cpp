// Memory that compiled kernels take while they run; see core.h.

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "core.h"

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kKept = 16;

struct Head {
  size_t capacity;  // of the bytes after the head, which is as long as the alignment
};

void *bytes_of(Head *head) { return reinterpret_cast<char *>(head) + kAlignment; }
Head *head_of(void *bytes) { return reinterpret_cast<Head *>(static_cast<char *>(bytes) - kAlignment); }

// What a thread has given back: a kernel takes the same in each run, and new memory would have to be zeroed each time.
struct Kept {
  std::vector<Head *> heads;
  ~Kept() {
    for (Head *head : heads) std::free(head);
  }
};

thread_local Kept kept;

}  // namespace

extern "C" {

void *collage_take_workspace(int, int, uint64_t bytes, int, int) {
  std::vector<Head *> &heads = kept.heads;
  size_t best = heads.size();
  for (size_t i = 0; i < heads.size(); ++i) {
    const size_t capacity = heads[i]->capacity;
    if (capacity >= bytes && (best == heads.size() || capacity < heads[best]->capacity)) best = i;
  }
  if (best < heads.size()) {
    Head *const head = heads[best];
    heads[best] = heads.back();
    heads.pop_back();
    return bytes_of(head);
  }
  void *memory = nullptr;
  if (bytes > SIZE_MAX - 2 * kAlignment || posix_memalign(&memory, kAlignment, bytes + kAlignment) != 0) {
    return nullptr;
  }
  Head *const head = static_cast<Head *>(memory);
  head->capacity = bytes;
  return bytes_of(head);
}

int collage_give_workspace(int, int, void *bytes) {
  std::vector<Head *> &heads = kept.heads;
  try {
    heads.push_back(head_of(bytes));
  } catch (const std::bad_alloc &) {
    std::free(head_of(bytes));
    return 0;
  }
  if (heads.size() > kKept) {
    std::free(heads.front());
    heads.erase(heads.begin());
  }
  return 0;
}

}  // extern "C"
