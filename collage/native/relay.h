// A walk through a launch list that whoever has a core carries on.
//
// Where others use our cores, too, the system takes a core away from a thread in the middle of a task, for some
// milliseconds, and all that meet with it wait. So nobody meets here: threads take parts of the step that is open, and one
// of them, any one, leads on to the next step. Each gives its core away by itself, between two tasks, before the system
// would; the others go on with what it has left.

#ifndef COLLAGE_NATIVE_RELAY_H
#define COLLAGE_NATIVE_RELAY_H

#include "core.h"
#include "wait.h"

#include <sched.h>
#include <stdint.h>

#include <atomic>
#include <vector>

namespace collage {

// How long a thread goes on before it gives others its core. Who has not seen the clock for a while was without a core,
// and has a new one for as long.
constexpr int64_t kTurn = 500000, kGap = 1000000;  // ns

inline int run_task(const collage_task &task) { return task.fn(task.a, task.b, task.n, task.c); }

class Relay {
 public:
  // One walk at a time; run() by as many threads as there are, until it is over.
  void begin(const collage_step *steps, int64_t count) {
    while (led_.exchange(true, std::memory_order_acquire)) relax();  // somebody may still be leaving the last walk
    steps_ = steps;
    count_ = count;
    at_ = 0;
    status_ = 0;
    over_.store(false, std::memory_order_relaxed);
    led_.store(false, std::memory_order_release);
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
      if (turn_is_over()) give_way();
    }
  }

  // Of the walk that is over: the status of the task that failed, or 0, and its step.
  int status() const { return status_; }
  int64_t failed() const { return status_ != 0 ? at_ : -1; }

 private:
  // A stream, or a single task, that others may take over between two of its tasks.
  struct Part {
    std::atomic<bool> taken{false};
    std::atomic<bool> done{false};
    intptr_t at = 0;  // whoever has taken it goes on from here
    int status = 0;
  };

  static thread_local int64_t since_, seen_;

  static bool turn_is_over() {
    const int64_t now = now_ns();
    if (now - seen_ > kGap) since_ = now;
    seen_ = now;
    return now - since_ > kTurn;
  }

  static void give_way() {
    sched_yield();
    since_ = seen_ = now_ns();
  }

  // Whether a task that waits would not.
  static bool recorded(const collage_task &t) {
    return static_cast<std::atomic<uint32_t> *>(t.a)->load(std::memory_order_acquire) != *static_cast<uint32_t *>(t.b);
  }

  // Walks on until the list ends or the turn is over.
  void lead() {
    while (at_ < count_) {
      const collage_step &step = steps_[at_];
      const bool whole = step.mode == COLLAGE_LEAD || step.count == 1;
      if (!whole && !with_others(step)) return;
      status_ = whole ? alone(step) : first_failure(step);
      if (status_ != 0) break;
      ++at_;
      if (at_ < count_ && turn_is_over()) return;
    }
    over_.store(true, std::memory_order_release);
  }

  static int alone(const collage_step &step) {
    int code = 0;
    for (int i = 0; i < step.count && code == 0; ++i) code = run_task(step.tasks[i]);
    return code;
  }

  // Whether the step is done; else the turn was over first.
  bool with_others(const collage_step &step) {
    if (open_.load(std::memory_order_relaxed) == nullptr) {
      if (size_t(step.count) > parts_.size()) parts_ = std::vector<Part>(size_t(step.count));
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
      if (turn_is_over()) return false;
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

  // Whoever has time takes a part that nobody else has.
  void take_parts(const collage_step &step) {
    for (int i = 0; i < step.count; ++i) {
      Part &part = parts_[size_t(i)];
      if (part.done.load(std::memory_order_acquire) || part.taken.exchange(true, std::memory_order_acquire)) continue;
      if (!part.done.load(std::memory_order_relaxed)) go_on(step, i, part);
      part.taken.store(false, std::memory_order_release);
    }
  }

  // Goes on with part i of the step as far as it comes without waiting, until the turn is over.
  static void go_on(const collage_step &step, int i, Part &part) {
    const bool stream = step.tasks[i].fn == collage_stream;
    const collage_task *const tasks = stream ? static_cast<const collage_task *>(step.tasks[i].a) : &step.tasks[i];
    const intptr_t count = stream ? step.tasks[i].n : 1;
    for (; part.at < count; ++part.at) {
      const collage_task &t = tasks[part.at];
      const bool event = stream && (t.fn == collage_record || t.fn == collage_await);
      if (event && t.fn == collage_await && !recorded(t)) return;
      if (part.status != 0 && !event) continue;
      if (!event && turn_is_over()) return;
      const int code = run_task(t);
      if (part.status == 0) part.status = code;
    }
    part.done.store(true, std::memory_order_release);
  }

  // Of the walk; changed by whoever leads.
  std::atomic<bool> led_{false};
  std::atomic<bool> over_{true};
  const collage_step *steps_ = nullptr;
  int64_t count_ = 0, at_ = 0;
  int status_ = 0;

  alignas(128) std::atomic<const collage_step *> open_{nullptr};  // the step whose parts are there to be taken
  alignas(128) std::atomic<int> inside_{0};                       // how many look for parts, the one that leads aside
  std::vector<Part> parts_;
};

inline thread_local int64_t Relay::since_ = 0;
inline thread_local int64_t Relay::seen_ = 0;

}  // namespace collage
#endif
