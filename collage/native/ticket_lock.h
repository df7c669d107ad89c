// A ticket lock: callers get it in the order in which they came, and sleep until then.

#ifndef COLLAGE_NATIVE_TICKET_LOCK_H
#define COLLAGE_NATIVE_TICKET_LOCK_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>

namespace collage {

// With a std::mutex the thread that has just run comes back before a sleeping one is awake, and runs again: one of eight
// callers may get all runs.
class TicketLock {
 public:
  void lock() {
    const uint32_t mine = next_.fetch_add(1, std::memory_order_seq_cst);
    for (uint32_t now; (now = serving_.load(std::memory_order_seq_cst)) != mine;)
      syscall(SYS_futex, &serving_, FUTEX_WAIT_BITSET_PRIVATE, now, nullptr, nullptr, bit(mine));
  }

  void unlock() {
    const uint32_t then = serving_.load(std::memory_order_relaxed) + 1;
    serving_.store(then, std::memory_order_seq_cst);
    if (next_.load(std::memory_order_seq_cst) != then)
      syscall(SYS_futex, &serving_, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, nullptr, nullptr, bit(then));
  }

 private:
  // The bit that wakes one of 32 waiting threads, instead of all.
  static uint32_t bit(uint32_t ticket) { return 1u << ticket % 32; }

  std::atomic<uint32_t> next_{0}, serving_{0};
};

}  // namespace collage
#endif
