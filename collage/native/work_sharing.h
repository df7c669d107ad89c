// Work sharing under contention: a walk through a launch list that any thread with a core carries on.
//
// Where other processes use our cores, too, the system takes a core away from a thread in the middle of a task, for some
// milliseconds. With barriers all threads of the team would then wait for it. So there are no barriers here: threads take
// parts of the step that is open, and any one of them leads on to the next step. Each gives its core away by itself,
// between two tasks, before the system would do it, and the others go on with what it has left.

#ifndef COLLAGE_NATIVE_WORK_SHARING_H
#define COLLAGE_NATIVE_WORK_SHARING_H

#include "core.h"
#include "wait.h"

#include <sched.h>
#include <stdint.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <vector>

namespace collage {

// A thread goes on for kTimeSlice before it gives others its core. A thread that has not looked at the clock for kGap was
// without a core, and begins a new time slice.
constexpr int64_t kTimeSlice = 500000, kGap = 1000000;  // ns

inline int run_task(const collage_task &task) { return task.fn(task.a, task.b, task.n, task.c); }

class WorkSharing {
 public:
  // Begins a walk. There is one at a time, and all threads of the team call run() until it is over. Returns false, and
  // begins nothing, when there is no memory for it.
  bool begin(const collage_step *steps, int64_t count) {
    while (led_.exchange(true, std::memory_order_acquire)) relax();  // a thread may still be leaving the last walk
    if (!has_room(steps, count)) {
      led_.store(false, std::memory_order_release);
      return false;
    }
    steps_ = steps;
    count_ = count;
    at_ = 0;
    status_ = 0;
    over_.store(false, std::memory_order_relaxed);
    led_.store(false, std::memory_order_release);
    return true;
  }

  void run() {
    while (!over_.load(std::memory_order_acquire)) {
      if (!led_.exchange(true, std::memory_order_acquire)) {
        if (!over_.load(std::memory_order_relaxed)) lead();
        led_.store(false, std::memory_order_release);
      } else if (open_.load(std::memory_order_relaxed) != nullptr) {
        inside_.fetch_add(1, std::memory_order_seq_cst);
        if (const collage_step *step = open_.load(std::memory_order_seq_cst)) take_parts(*step);
        inside_.fetch_sub(1, std::memory_order_seq_cst);
      } else {
        relax();
      }
      if (slice_is_over()) give_way();
    }
  }

  // After the walk: the status of the task that failed, or 0, and its step, or -1.
  int status() const { return status_; }
  int64_t failed() const { return status_ != 0 ? at_ : -1; }

 private:
  // A stream, or a single task, of a step. Another thread may take it over between two of its tasks.
  struct Part {
    std::atomic<bool> taken{false};
    std::atomic<bool> done{false};
    intptr_t at = 0;  // the task that comes next
    int status = 0;
  };

  static thread_local int64_t since_, seen_;

  static bool slice_is_over() {
    const int64_t now = now_ns();
    if (now - seen_ > kGap) since_ = now;
    seen_ = now;
    return now - since_ > kTimeSlice;
  }

  static void give_way() {
    sched_yield();
    since_ = seen_ = now_ns();
  }

  // Whether the event that the task waits for has been recorded.
  static bool recorded(const collage_task &t) {
    return static_cast<std::atomic<uint32_t> *>(t.a)->load(std::memory_order_acquire) != *static_cast<uint32_t *>(t.b);
  }

  // Walks on until the list ends or the time slice is over.
  void lead() {
    while (at_ < count_) {
      const collage_step &step = steps_[at_];
      const bool whole = !has_parts(step);
      if (!whole && !with_others(step)) return;
      status_ = whole ? run_whole(step) : first_failure(step);
      if (status_ != 0) break;
      ++at_;
      if (at_ < count_ && slice_is_over()) return;
    }
    over_.store(true, std::memory_order_release);
  }

  static int run_whole(const collage_step &step) {
    int code = 0;
    for (int i = 0; i < step.count && code == 0; ++i) code = run_task(step.tasks[i]);
    return code;
  }

  static bool has_parts(const collage_step &step) { return step.mode == COLLAGE_SPLIT && step.count > 1; }

  // Whether there is memory for the state of the largest step's parts. Without it threads could not share streams that
  // wait for each other, and one thread would wait for ever.
  bool has_room(const collage_step *steps, int64_t count) {
    size_t most = 0;
    for (int64_t at = 0; at < count; ++at)
      if (has_parts(steps[at])) most = std::max(most, size_t(steps[at].count));
    if (most <= parts_.size()) return true;
    try {
      parts_ = std::vector<Part>(most);
    } catch (const std::bad_alloc &) {
      return false;
    }
    return true;
  }

  // Returns whether the step is done; if not, the time slice was over first.
  bool with_others(const collage_step &step) {
    if (open_.load(std::memory_order_relaxed) == nullptr) {
      for (int i = 0; i < step.count; ++i) {
        Part &part = parts_[size_t(i)];
        part.done.store(false, std::memory_order_relaxed);
        part.at = part.status = 0;
      }
      open_.store(&step, std::memory_order_seq_cst);
    }
    while (any_left(step)) {
      take_parts(step);
      if (!any_left(step)) break;
      if (slice_is_over()) return false;
      relax();
    }
    open_.store(nullptr, std::memory_order_seq_cst);
    while (inside_.load(std::memory_order_seq_cst) != 0) relax();
    return true;
  }

  bool any_left(const collage_step &step) const {
    for (int i = 0; i < step.count; ++i)
      if (!parts_[size_t(i)].done.load(std::memory_order_acquire)) return true;
    return false;
  }

  int first_failure(const collage_step &step) const {
    for (int i = 0; i < step.count; ++i)
      if (parts_[size_t(i)].status != 0) return parts_[size_t(i)].status;
    return 0;
  }

  // Takes parts that no other thread has taken.
  void take_parts(const collage_step &step) {
    for (int i = 0; i < step.count; ++i) {
      Part &part = parts_[size_t(i)];
      if (part.done.load(std::memory_order_acquire) || part.taken.exchange(true, std::memory_order_acquire)) continue;
      if (!part.done.load(std::memory_order_relaxed)) go_on(step, i, part);
      part.taken.store(false, std::memory_order_release);
    }
  }

  // Goes on with part i of the step until it would have to wait, or until the time slice is over.
  static void go_on(const collage_step &step, int i, Part &part) {
    const bool stream = step.tasks[i].fn == collage_stream;
    const collage_task *const tasks = stream ? static_cast<const collage_task *>(step.tasks[i].a) : &step.tasks[i];
    const intptr_t count = stream ? step.tasks[i].n : 1;
    for (; part.at < count; ++part.at) {
      const collage_task &t = tasks[part.at];
      const bool event = stream && (t.fn == collage_record || t.fn == collage_await);
      if (event && t.fn == collage_await && !recorded(t)) return;
      if (part.status != 0 && !event) continue;
      if (!event && slice_is_over()) return;
      const int code = run_task(t);
      if (part.status == 0) part.status = code;
    }
    part.done.store(true, std::memory_order_release);
  }

  // The state of the walk, which only the thread that leads changes.
  std::atomic<bool> led_{false};
  std::atomic<bool> over_{true};
  const collage_step *steps_ = nullptr;
  int64_t count_ = 0, at_ = 0;
  int status_ = 0;

  alignas(128) std::atomic<const collage_step *> open_{nullptr};  // the step whose parts can be taken
  alignas(128) std::atomic<int> inside_{0};                       // threads that look for parts, without the leading one
  std::vector<Part> parts_;
};

inline thread_local int64_t WorkSharing::since_ = 0;
inline thread_local int64_t WorkSharing::seen_ = 0;

}  // namespace collage
#endif
