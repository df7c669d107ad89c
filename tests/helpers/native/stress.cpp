// Random launch lists from several threads on one team, checked against the same steps computed in order; some with
// streams and events, and one when there is no memory. Built by test_threads.py with core.cpp and ThreadSanitizer. Arguments: size of the team, lists
// for each caller, seed.

#include "core.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int kWidth = 7;
constexpr int kCallers = 3;

struct Environment {  // TVMParallelGroupEnv
  void *sync;
  int32_t tasks;
};

using Cells = int64_t[kWidth];

int64_t cell(const Cells &in, int i) { return (in[i] * 5 + in[(i + 3) % kWidth] + i) % 1000003; }

// What a task works on: cells first..last of `out` from all of `in`. Plain memory: a step that began before the
// one before it ended would be a data race.
struct Work {
  const Cells *in;
  Cells *out;
  int first, last;
  int status;
  bool nested;
  bool ran;
};

int compute(void *a, void *, intptr_t, void *) {
  Work &work = *static_cast<Work *>(a);
  for (int i = work.first; i < work.last; ++i) (*work.out)[i] = cell(*work.in, i);
  work.ran = true;
  return work.status;
}

int body(int task, void *environment, void *data) {
  Work &work = *static_cast<Work *>(data);
  const int tasks = static_cast<Environment *>(environment)->tasks;
  for (int i = work.first + task; i < work.last; i += tasks) (*work.out)[i] = cell(*work.in, i);
  return task == tasks - 1 ? work.status : 0;
}

int nest(int task, void *environment, void *data) {
  if (task != static_cast<Environment *>(environment)->tasks - 1) return 0;
  return collage_parallel_launch(body, data, 0);
}

int compute_in_parallel(void *a, void *, intptr_t tasks, void *) {
  Work &work = *static_cast<Work *>(a);
  work.ran = true;
  return collage_parallel_launch(work.nested ? nest : body, &work, int(tasks));
}

void check(bool holds, const char *what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

void one_list(collage_team *team, std::mt19937 &random) {
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  const int length = 1 + below(8);
  const int failing = below(4) == 0 ? below(length) : -1;
  auto cells = std::make_unique<Cells[]>(length + 1);
  for (int i = 0; i < kWidth; ++i) cells[0][i] = below(1000);
  std::vector<std::vector<Work>> works(length);
  std::vector<std::vector<collage_task>> tasks(length);
  std::vector<collage_step> steps(length);
  for (int at = 0; at < length; ++at) {
    const bool lead = below(2) == 0;
    const int parts = 1 + below(kWidth);
    for (int part = 0; part < parts; ++part)
      works[at].push_back({&cells[at], &cells[at + 1], kWidth * part / parts, kWidth * (part + 1) / parts, 0,
                           below(4) == 0, false});
    if (at == failing) works[at][below(parts)].status = 1 + below(5);
    for (Work &work : works[at]) {
      const bool parallel = below(lead ? 4 : 16) != 0 && (lead || below(2) == 0);
      tasks[at].push_back({parallel ? compute_in_parallel : compute, &work, nullptr, below(6), nullptr});
    }
    steps[at] = {lead ? COLLAGE_LEAD : COLLAGE_SPLIT, parts, tasks[at].data()};
  }
  if (below(64) == 0) collage_team_park(team);
  if (below(64) == 0) collage_team_set_spin(team, below(3) * 20000);
  if (below(8) == 0) collage_team_beware(team, below(3) * 300000);
  int64_t failed = -2;
  const int status = collage_team_run(team, steps.data(), length, &failed);
  check((status != 0) == (failing >= 0), "the status");
  check(failed == failing, "the step that failed");
  Cells expected;
  for (int at = 0; at < length; ++at) {
    const bool before = failing < 0 || at < failing;
    for (int i = 0; i < kWidth && before; ++i) {
      expected[i] = cell(cells[at], i);
      check(cells[at + 1][i] == expected[i], "a number");
    }
    for (const Work &work : works[at]) {
      if (before) check(work.ran, "a task did not run");
      if (failing >= 0 && at > failing) check(!work.ran, "a task ran after the failure");
      if (work.status != 0) check(work.ran, "the failing task did not run");
    }
  }
}

// A launch of a schedule: `out` from all of `in`, which other launches write, on this stream or another.
struct Launch {
  std::vector<const Cells *> in;
  Cells *out;
  int64_t step;
  int stream;
  int status;
  bool ran;
};

int64_t launch_cell(const Launch &launch, int i) {
  int64_t sum = i;
  for (const Cells *in : launch.in) sum = (sum * 5 + (*in)[(i + 1) % kWidth]) % 1000003;
  return sum;
}

int compute_launch(void *a, void *, intptr_t, void *) {
  Launch &launch = *static_cast<Launch *>(a);
  for (int i = 0; i < kWidth; ++i) (*launch.out)[i] = launch_cell(launch, i);
  launch.ran = true;
  return launch.status;
}

struct alignas(128) Counter {
  std::atomic<uint32_t> value{0};
};

// Steps of streams that wait for each other's events, run several times, now and then with a launch that fails.
void one_schedule(collage_team *team, int size, std::mt19937 &random) {
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  const int length = 1 + below(3);
  std::deque<Launch> launches;
  std::deque<Counter> counters;
  std::deque<std::vector<std::vector<collage_task>>> streams;
  auto cells = std::make_unique<Cells[]>(size_t(length) * 10 + 1);
  for (int i = 0; i < kWidth; ++i) cells[0][i] = below(1000);
  for (int at = 0; at < length; ++at) {
    const int count = 1 + below(size);  // a thread has one stream: it would wait for another of its own for ever
    const size_t first = launches.size();
    streams.emplace_back(count);
    std::vector<std::vector<size_t>> waiters(10);
    for (int left = 1 + below(10); left > 0; --left) {
      launches.push_back({{&cells[0]}, &cells[launches.size() + 1], at, below(count), 0, false});
      Launch &launch = launches.back();
      for (int reads = below(4); reads > 0 && launches.size() > 1; --reads) {
        const size_t u = size_t(below(int(launches.size()) - 1));
        launch.in.push_back(launches[u].out);
        if (u >= first && launches[u].stream != launch.stream) waiters[u - first].push_back(launches.size() - 1);
      }
    }
    std::vector<std::vector<collage_task>> awaits(launches.size() - first);
    for (size_t v = first; v < launches.size(); ++v) {
      std::vector<collage_task> &tasks = streams.back()[size_t(launches[v].stream)];
      for (const collage_task &await : awaits[v - first]) tasks.push_back(await);
      tasks.push_back({compute_launch, &launches[v], nullptr, 0, nullptr});
      if (waiters[v - first].empty()) continue;
      void *const event = &counters.emplace_back().value;
      tasks.push_back({collage_record, event, nullptr, 0, nullptr});
      for (const size_t w : waiters[v - first])
        awaits[w - first].push_back({collage_await, event, &counters.emplace_back().value, 0, nullptr});
    }
  }
  std::vector<std::vector<collage_task>> tasks;
  std::vector<collage_step> steps;
  for (std::vector<std::vector<collage_task>> &step : streams) {
    tasks.emplace_back();
    for (std::vector<collage_task> &stream : step)
      tasks.back().push_back({collage_stream, stream.data(), nullptr, intptr_t(stream.size()), nullptr});
  }
  for (std::vector<collage_task> &step : tasks) steps.push_back({COLLAGE_SPLIT, int32_t(step.size()), step.data()});
  for (int run = 0; run < 4; ++run) {
    Launch *failing = below(3) == 0 ? &launches[size_t(below(int(launches.size())))] : nullptr;
    for (Launch &launch : launches) launch.status = 0, launch.ran = false;
    if (failing != nullptr) failing->status = 1 + below(5);
    for (int i = 0; i < kWidth; ++i) cells[0][i] = below(1000);
    if (below(16) == 0) collage_team_park(team);
    if (below(3) == 0) collage_team_beware(team, below(3) * 300000);
    int64_t failed = -2;
    const int status = collage_team_run(team, steps.data(), length, &failed);
    check(status == (failing != nullptr ? failing->status : 0), "the status of a schedule");
    check(failed == (failing != nullptr ? failing->step : -1), "the step of a schedule that failed");
    bool behind = false;
    for (const Launch &launch : launches) {
      if (failing == nullptr || launch.step < failing->step) {
        check(launch.ran, "a launch did not run");
        for (int i = 0; i < kWidth; ++i) check((*launch.out)[i] == launch_cell(launch, i), "a launch's number");
      } else {
        behind = behind || &launch == failing;
        if (&launch == failing) check(launch.ran, "the failing launch did not run");
        else if (launch.step > failing->step || (behind && launch.stream == failing->stream))
          check(!launch.ran, "a launch ran after the failure");
      }
    }
  }
}

thread_local bool no_memory = false;

// Two streams, the first of which waits for the second, where there is no memory for sharing them.
void without_memory(collage_team *team) {
  Counter event, waiter;
  collage_task first[] = {{collage_await, &event.value, &waiter.value, 0, nullptr}};
  collage_task second[] = {{collage_record, &event.value, nullptr, 0, nullptr}};
  collage_task streams[] = {{collage_stream, first, nullptr, 1, nullptr}, {collage_stream, second, nullptr, 1, nullptr}};
  const collage_step step{COLLAGE_SPLIT, 2, streams};
  collage_team_beware(team, 60000000000);
  no_memory = true;
  alarm(60);  // in seconds; it ends a test that waits for ever
  const int status = collage_team_run(team, &step, 1, nullptr);
  alarm(0);
  no_memory = false;
  check(status == 0, "the status without memory");
  collage_team_beware(team, 0);
}

}  // namespace

// Inline, GCC would take them for a pair that does not match.
[[gnu::noinline]] void *operator new(size_t size) {
  void *const memory = no_memory ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

[[gnu::noinline]] void operator delete(void *memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void *memory, size_t) noexcept { std::free(memory); }

int main(int count, char **values) {
  check(count == 4, "usage: stress SIZE LISTS SEED");
  const int size = std::atoi(values[1]), lists = std::atoi(values[2]), seed = std::atoi(values[3]);
  std::vector<int> cpus;
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  collage_team *team = collage_team_create(size, cpus.data(), int(cpus.size()));
  check(team != nullptr, "no team");
  if (size > 1) without_memory(team);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller)
    callers.emplace_back([=] {
      std::mt19937 random(unsigned(seed * kCallers + caller));
      for (int i = 0; i < lists; ++i) {
        one_list(team, random);
        if (i % 4 == 0) one_schedule(team, size, random);
      }
    });
  for (std::thread &caller : callers) caller.join();
  collage_team_destroy(team);
  return 0;
}
