// See core.h for what each function promises.

#include "core.h"
#include "work_sharing.h"
#include "ticket_lock.h"
#include "wait.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <exception>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

using namespace collage;  // ticket_lock.h, wait.h

namespace {

constexpr size_t kLine = 128;         // two cache lines: the prefetcher pairs them
constexpr int kSpinsBetweenClocks = 64;

// Whether other processes use our cores is checked after runs longer than this, after some of the shorter ones, and after
// all of them for a while when it was so.
constexpr int64_t kLongRun = 1000000;  // ns
constexpr int64_t kShortRun = 100000;  // ns; a check takes about 3 us
constexpr int kLookEvery = 16;         // runs
// What a thread misses of a run when it was kept off its core, in ns: waking it takes less.
constexpr int64_t kLost = 200000;
// Checked runs are judged together when they have taken so long, in ns: a few time slices of other processes.
constexpr int64_t kWindow = 20000000;
// How long a team then shares work before barriers are tried again: longer each time that these are still slower.
constexpr int64_t kSharingAtFirst = 100000000, kSharingAtMost = 1600000000;  // ns
// The share of a core that a thread gets while another process uses the core, too.
constexpr double kShare = 0.3;

// TVM's TVMParallelGroupEnv.
struct ParallelEnvironment {
  void *sync;
  int32_t tasks;
};

using ParallelBody = int (*)(int, void *, void *);

using SetThreads = void (*)(int);
std::atomic<int (*)(void)> openmp_get{nullptr};
std::atomic<SetThreads> openmp_set{nullptr};  // written last, read first

}  // namespace

struct collage_team {
  explicit collage_team(int size) : size(size) {}

  const int size;
  std::atomic<int> patience{0};  // spins before a waiting thread gives way: none with more threads than cores
  std::vector<int> cpus;  // where the threads are pinned, the caller's first; empty where they are not
  int allowed = 0;        // how many CPUs the threads were given to choose from
  std::vector<pthread_t> threads;
  TicketLock owner;  // held by the caller whose run it is
  std::atomic<int64_t> spin_ns{200000};

  // Used by the caller whose run it is: the other threads' clocks and what they showed, and how long to share work.
  std::vector<clockid_t> clocks;
  std::vector<int64_t> used;
  int64_t looked_at = 0, lost = 0;  // how long the runs checked lately took, and the most that a thread missed of them
  bool watching = false;  // whether every run is checked, because something was lost
  int64_t sharing_until = 0, sharing_for = kSharingAtFirst, last_run = 0, runs = 0;

  // The run under way; written by the first thread before `run` changes.
  const collage_step *steps = nullptr;
  int64_t count = 0;

  // The first status of this run that was not 0, and its step.
  std::atomic<int> status{0};
  std::atomic<int64_t> failed{-1};

  alignas(kLine) std::atomic<uint32_t> run{0};  // counts runs by twos, odd for work sharing; sleepers wait for it
  std::atomic<int> sleepers{0};
  std::atomic<bool> park{false};
  std::atomic<bool> stop{false};

  WorkSharing shared_walk;

  alignas(kLine) std::atomic<int> arrived{0};
  alignas(kLine) std::atomic<uint32_t> phase{0};  // counts the steps; odd after one that failed
  // A parallel loop whose tasks the first thread shares out; without a body, the step is over.
  alignas(kLine) std::atomic<uint32_t> posted{0};
  ParallelBody body = nullptr;
  void *data = nullptr;
  int tasks = 0;
  alignas(kLine) std::atomic<int> pending{0};
  std::atomic<int> body_status{0};

  Spin patient() const { return Spin(patience.load(std::memory_order_relaxed)); }

  // Returns whether the run goes on. The last thread to arrive decides it for all, since by the time that the others
  // look the next step may have failed, or the next run may have begun.
  bool barrier() {
    const uint32_t now = phase.load(std::memory_order_relaxed);
    uint32_t then = (now | 1) + 1;
    if (arrived.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
      arrived.store(0, std::memory_order_relaxed);
      if (status.load(std::memory_order_relaxed) != 0) then |= 1;
      phase.store(then, std::memory_order_release);
    } else {
      for (Spin spin = patient(); (then = phase.load(std::memory_order_acquire)) == now;) spin();
    }
    return then % 2 == 0;
  }

  void fail(int code, int64_t step) {
    int none = 0;
    if (status.compare_exchange_strong(none, code, std::memory_order_relaxed))
      failed.store(step, std::memory_order_relaxed);
  }

  void post(ParallelBody what, void *with, int how_many) {
    body = what;
    data = with;
    tasks = how_many;
    pending.store(size - 1, std::memory_order_relaxed);
    posted.fetch_add(1, std::memory_order_release);
  }

  void walk(int me, uint32_t &seen);
  void help(int me, uint32_t &seen);
  void serve(int me);
};

namespace {

thread_local collage_team *leading = nullptr;  // the team whose step this thread runs as its first

void share_of(collage_team &team, int me) {
  ParallelEnvironment environment{nullptr, team.tasks};
  for (int task = me; task < team.tasks; task += team.size) {
    const int code = team.body(task, &environment, team.data);
    if (code != 0) team.body_status.store(code, std::memory_order_relaxed);
  }
}

}  // namespace

void collage_team::help(int me, uint32_t &seen) {
  while (true) {
    for (Spin spin = patient(); posted.load(std::memory_order_acquire) == seen;) spin();
    ++seen;
    if (body == nullptr) return;
    share_of(*this, me);
    pending.fetch_sub(1, std::memory_order_release);
  }
}

void collage_team::walk(int me, uint32_t &seen) {
  const collage_step *const list = steps;  // the next run may begin before all have left this one
  const int64_t length = count;
  for (int64_t at = 0; at < length; ++at) {
    const collage_step &step = list[at];
    if (step.mode == COLLAGE_SPLIT) {
      for (int i = me; i < step.count; i += size) {
        const int code = run_task(step.tasks[i]);
        if (code != 0) fail(code, at);
      }
    } else if (me == 0) {
      leading = this;
      for (int i = 0; i < step.count; ++i) {
        const int code = run_task(step.tasks[i]);
        if (code != 0) {
          fail(code, at);
          break;
        }
      }
      leading = nullptr;
      post(nullptr, nullptr, 0);
    } else {
      help(me, seen);
    }
    if (!barrier()) return;
  }
}

void collage_team::serve(int me) {
  uint32_t last = 0, seen = 0;
  SetThreads set = nullptr;
  while (true) {
    int64_t since = 0;
    Spin spin = patient();
    for (int spins = 0; run.load(std::memory_order_acquire) == last; ++spins) {
      spin();
      if (spins % kSpinsBetweenClocks != 0) continue;
      const int64_t now = now_ns();
      if (since == 0) since = now;
      if (!park.load(std::memory_order_relaxed) && now - since < spin_ns.load(std::memory_order_relaxed)) continue;
      sleepers.fetch_add(1, std::memory_order_seq_cst);
      syscall(SYS_futex, &run, FUTEX_WAIT_PRIVATE, last, nullptr, nullptr, 0);
      sleepers.fetch_sub(1, std::memory_order_seq_cst);
    }
    last = run.load(std::memory_order_acquire);
    if (stop.load(std::memory_order_relaxed)) return;
    if (const SetThreads now = openmp_set.load(std::memory_order_acquire); now != set) {
      set = now;
      if (set != nullptr) set(1);
    }
    if (last % 2 != 0) shared_walk.run();
    else walk(me, seen);
  }
}

namespace {

struct Start {
  collage_team *team;
  int me;
};

void *serve_thread(void *argument) {
  Start *start = static_cast<Start *>(argument);
  collage_team *team = start->team;
  const int me = start->me;
  delete start;
  team->serve(me);
  return nullptr;
}

void wake(collage_team &team, bool sharing = false) {
  const uint32_t last = team.run.load(std::memory_order_relaxed);
  team.run.store((last | 1) + 1 + (sharing ? 1 : 0), std::memory_order_seq_cst);
  if (team.sleepers.load(std::memory_order_seq_cst) > 0)
    syscall(SYS_futex, &team.run, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void pin(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);
}

// Pins the threads to these CPUs, or to none where they are fewer than the threads.
void pin_all(collage_team &team, const int *cpus, int count) {
  team.cpus.clear();
  if (count < team.size) return;
  team.cpus.assign(cpus, cpus + team.size);  // there is room from the start
  for (int me = 1; me < team.size; ++me) pin(team.threads[size_t(me) - 1], team.cpus[size_t(me)]);
}

// Lets threads go where the caller may go: they stay where the thread that made them was allowed to run.
void widen(collage_team &team, const cpu_set_t &usable) {
  team.allowed = CPU_COUNT(&usable);
  for (pthread_t thread : team.threads) pthread_setaffinity_np(thread, sizeof usable, &usable);
}

// The caller stays where the system put it, and a thread of ours that was pinned there moves to the free core. The cores
// that this process may use can change at any time (taskset, containers). Only those are taken; with fewer of them than
// threads, waiting threads give way at once.
void make_room(collage_team &team) {
  cpu_set_t usable;
  const bool known = sched_getaffinity(0, sizeof usable, &usable) == 0;
  if (known && team.cpus.empty() && CPU_COUNT(&usable) > team.allowed) widen(team, usable);
  const bool crowded = team.cpus.empty() || (known && CPU_COUNT(&usable) < team.size);
  team.patience.store(crowded ? 0 : kSpinsBeforeYield, std::memory_order_relaxed);
  const int here = sched_getcpu();
  if (crowded || team.cpus[0] == here) return;
  for (int other = 1; other < team.size; ++other) {
    if (team.cpus[other] != here) continue;
    if (known && !CPU_ISSET(team.cpus[0], &usable)) return;
    std::swap(team.cpus[0], team.cpus[other]);
    pin(team.threads[other - 1], team.cpus[other]);
    return;
  }
  team.cpus[0] = here;
}

// Returns false, and runs nothing, when there is no memory for it.
bool run_sharing_work(collage_team &team) {
  if (!team.shared_walk.begin(team.steps, team.count)) return false;
  make_room(team);
  wake(team, true);
  team.shared_walk.run();
  team.status.store(team.shared_walk.status(), std::memory_order_relaxed);
  team.failed.store(team.shared_walk.failed(), std::memory_order_relaxed);
  return true;
}

// Whether the runs checked lately would have been faster with work sharing. Without what was lost in them they would have
// taken the rest of the time; on a part of one core less, longer in proportion.
bool sharing_is_better(const collage_team &team) {
  const double rest = double(team.looked_at - team.lost);
  return double(team.looked_at) > rest * team.size / (team.size - 1 + kShare);
}

// Another process on one of the cores holds up all threads at each barrier: on two threads a network takes three times as
// long as before, and less than twice as long on one thread. So where threads are kept off their cores for so much of the
// time that it pays, they go on without barriers for a while.
void run_together(collage_team &team) {
  const bool watch = team.watching && team.last_run > kShortRun;
  const bool look = team.last_run > kLongRun || watch || team.runs++ % kLookEvery == 0;
  int64_t start = 0, own = 0;
  if (look) {
    start = now_ns();
    own = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < team.clocks.size(); ++i) team.used[i] = clock_ns(team.clocks[i]);
  }
  make_room(team);
  wake(team);
  uint32_t unused = 0;
  team.walk(0, unused);
  if (!look) return;
  const int64_t wall = team.last_run = now_ns() - start;
  if (team.patience.load(std::memory_order_relaxed) == 0) return;
  const auto missed = [&](int64_t took) { return wall - took > kLost ? wall - took : 0; };
  int64_t most = missed(clock_ns(CLOCK_THREAD_CPUTIME_ID) - own);
  for (size_t i = 0; i < team.clocks.size(); ++i)
    most = std::max(most, missed(clock_ns(team.clocks[i]) - team.used[i]));
  team.lost += most;
  team.looked_at += wall;
  team.watching = team.watching || most > 0;
  if (team.looked_at < kWindow) return;
  team.watching = sharing_is_better(team);  // next time, too
  team.sharing_until = team.watching ? start + wall + team.sharing_for : 0;
  team.sharing_for = team.watching ? std::min(team.sharing_for * 2, kSharingAtMost) : kSharingAtFirst;
  team.looked_at = team.lost = 0;
}

int end_status = 0;

}  // namespace

extern "C" {

collage_team *collage_team_create(int threads, const int *cpus, int cpu_count) {
  if (threads < 1) return nullptr;
  collage_team *team = nullptr;
  try {
    team = new collage_team(threads);
    team->cpus.reserve(size_t(threads));
    team->threads.reserve(size_t(threads));
    team->clocks.reserve(size_t(threads));
    team->used.reserve(size_t(threads));
  } catch (const std::bad_alloc &) {
    delete team;
    return nullptr;
  }
  for (int me = 1; me < threads; ++me) {
    pthread_t thread;
    Start *start = new (std::nothrow) Start{team, me};
    if (start == nullptr || pthread_create(&thread, nullptr, serve_thread, start) != 0) {
      delete start;
      collage_team_destroy(team);
      return nullptr;
    }
    team->threads.push_back(thread);
    clockid_t clock;
    if (pthread_getcpuclockid(thread, &clock) == 0) team->clocks.push_back(clock);
  }
  team->used.resize(team->clocks.size());
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) == 0) team->allowed = CPU_COUNT(&usable);
  pin_all(*team, cpus, cpu_count);
  return team;
}

void collage_team_spread(collage_team *team, const int *cpus, int cpu_count) {
  std::lock_guard<TicketLock> hold(team->owner);
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0 || CPU_COUNT(&usable) < team->allowed) return;
  widen(*team, usable);
  pin_all(*team, cpus, cpu_count);
}

void collage_team_destroy(collage_team *team) {
  if (team == nullptr) return;
  team->stop.store(true);
  wake(*team);
  for (pthread_t thread : team->threads) pthread_join(thread, nullptr);
  delete team;
}

void collage_team_set_spin(collage_team *team, int64_t nanoseconds) { team->spin_ns.store(nanoseconds); }

int collage_team_run(collage_team *team, const collage_step *steps, int64_t count, int64_t *failed) {
  if (failed != nullptr) *failed = -1;
  if (count == 0) return 0;
  std::lock_guard<TicketLock> hold(team->owner);
  const SetThreads set = openmp_set.load(std::memory_order_acquire);
  const int regions = set != nullptr ? openmp_get.load(std::memory_order_relaxed)() : 1;
  if (regions != 1) set(1);
  team->steps = steps;
  team->count = count;
  team->status.store(0, std::memory_order_relaxed);
  team->failed.store(-1, std::memory_order_relaxed);
  team->park.store(false, std::memory_order_relaxed);
  if (team->size == 1) {
    uint32_t unused = 0;
    team->walk(0, unused);
  } else {
    const bool sharing = team->sharing_until != 0 && now_ns() < team->sharing_until;
    if (!sharing || !run_sharing_work(*team)) run_together(*team);
  }
  if (regions != 1) set(regions);
  if (failed != nullptr) *failed = team->failed.load(std::memory_order_relaxed);
  return team->status.load(std::memory_order_relaxed);
}

void collage_team_beware(collage_team *team, int64_t nanoseconds) {
  std::lock_guard<TicketLock> hold(team->owner);
  team->sharing_until = now_ns() + nanoseconds;
}

void collage_team_park(collage_team *team) { team->park.store(true, std::memory_order_relaxed); }

void collage_use_openmp(int (*get_max_threads)(void), void (*set_num_threads)(int)) {
  openmp_get.store(get_max_threads, std::memory_order_relaxed);
  openmp_set.store(set_num_threads, std::memory_order_release);
}

int collage_parallel_launch(int (*body)(int, void *, void *), void *data, int tasks) {
  collage_team *team = leading;
  if (team == nullptr || team->size == 1) {
    ParallelEnvironment alone{nullptr, 1};
    return body(0, &alone, data);
  }
  team->body_status.store(0, std::memory_order_relaxed);
  team->post(body, data, tasks > 0 ? tasks : team->size);
  leading = nullptr;  // a loop inside the loop runs alone
  share_of(*team, 0);
  leading = team;
  for (Spin spin = team->patient(); team->pending.load(std::memory_order_acquire) != 0;) spin();
  return team->body_status.load(std::memory_order_relaxed);
}

void collage_end_with(int status) {
  end_status = status;
  std::set_terminate([] { _exit(end_status); });
}

}  // extern "C"
