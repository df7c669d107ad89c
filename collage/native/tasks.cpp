// Tasks that are not a kernel's; see core.h.

#include <atomic>

#include "core.h"
#include "wait.h"

using collage::kSpinsBeforeYield;
using collage::now_ns;
using collage::Spin;

extern "C" {

int collage_note_time(void *a, void *, intptr_t, void *) {
  *static_cast<int64_t *>(a) = now_ns();
  return 0;
}

int collage_touch(void *a, void *, intptr_t n, void *) {
  volatile char *const bytes = static_cast<volatile char *>(a);
  for (intptr_t at = 0; at < n; at += 64) bytes[at] = bytes[at];
  return 0;
}

int collage_record(void *a, void *, intptr_t, void *) {
  static_cast<std::atomic<uint32_t> *>(a)->fetch_add(1, std::memory_order_release);
  return 0;
}

int collage_await(void *a, void *b, intptr_t, void *) {
  const std::atomic<uint32_t> &event = *static_cast<std::atomic<uint32_t> *>(a);
  uint32_t &seen = *static_cast<uint32_t *>(b);
  for (Spin spin(kSpinsBeforeYield); event.load(std::memory_order_acquire) == seen;) spin();
  ++seen;
  return 0;
}

int collage_stream(void *a, void *, intptr_t n, void *) {
  const collage_task *const tasks = static_cast<const collage_task *>(a);
  int status = 0;
  for (intptr_t i = 0; i < n; ++i) {
    const collage_task &t = tasks[i];
    const bool event = t.fn == collage_record || t.fn == collage_await;
    if (status == 0 || event) {
      const int code = t.fn(t.a, t.b, t.n, t.c);
      if (status == 0) status = code;
    }
  }
  return status;
}

int collage_nothing(void *, void *, intptr_t, void *) { return 0; }

}  // extern "C"
