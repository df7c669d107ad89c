// Waiting for other threads, and clocks.

#ifndef COLLAGE_NATIVE_WAIT_H
#define COLLAGE_NATIVE_WAIT_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace collage {

constexpr int kSpinsBeforeYield = 4000;  // some 50 us of pauses

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits by spinning. After a while each call gives way to other threads, since one of them may have a team's core.
class Spin {
 public:
  explicit Spin(int before_yield) : left_(before_yield) {}
  void operator()() {
    if (left_ > 0) --left_, relax();
    else sched_yield();
  }

 private:
  int left_;
};

inline int64_t clock_ns(clockid_t clock) {
  timespec t;
  return clock_gettime(clock, &t) == 0 ? int64_t(t.tv_sec) * 1000000000 + t.tv_nsec : 0;
}

inline int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

}  // namespace collage
#endif
