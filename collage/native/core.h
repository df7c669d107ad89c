// The native core: one team of threads, and launch lists that it walks without Python.
//
// Everything here has C linkage and plain types, so that Python calls it through ctypes and a test can call it
// from C. A launch list belongs to the caller that made it, and must outlive its runs.

#ifndef COLLAGE_NATIVE_CORE_H
#define COLLAGE_NATIVE_CORE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The one signature of everything that a team runs: an operator library's "execute", a compiled TVM function,
// or a kernel of our own. Returns 0, or a status that ends the run.
typedef int (*collage_fn)(void *a, void *b, intptr_t n, void *c);

typedef struct {
  collage_fn fn;
  void *a;
  void *b;
  intptr_t n;
  void *c;
} collage_task;

// SPLIT: task i runs on thread i modulo the team's size. LEAD: the first thread runs the tasks one after
// another, and the others take part in the parallel loops inside them (collage_parallel_launch).
enum { COLLAGE_SPLIT = 0, COLLAGE_LEAD = 1 };

// One step of a launch list; all threads meet at its end.
typedef struct {
  int32_t mode;
  int32_t count;
  collage_task *tasks;
} collage_step;

typedef struct collage_team collage_team;

// A team of `threads` threads: the caller of each run, and threads - 1 of its own. Each is pinned to another one of the
// `cpu_count` given `cpus`; where these are fewer than the threads, nothing is pinned. NULL when the system gives no more
// threads.
collage_team *collage_team_create(int threads, const int *cpus, int cpu_count);
void collage_team_destroy(collage_team *team);

// Pin the threads again, as `collage_team_create` does: the caller may use more CPUs now than whoever made the team, whose
// threads stay on those that it could use. Where nothing is pinned, they may run where the caller may.
void collage_team_spread(collage_team *team, const int *cpus, int cpu_count);

// How long threads without work spin before they sleep, in nanoseconds.
void collage_team_set_spin(collage_team *team, int64_t nanoseconds);

// Walk a launch list. A team has one run at a time, and callers get it in the order in which they came. Returns 0, or the
// status of the task that failed, with its step in *failed (which may be NULL).
int collage_team_run(collage_team *team, const collage_step *steps, int64_t count, int64_t *failed);

// For so long share work (work_sharing.h), so that no thread waits for a certain other one. A team begins that by itself
// when its threads are kept off their cores for much of the time.
void collage_team_beware(collage_team *team, int64_t nanoseconds);

// Put the idle threads to sleep now, because another library needs their cores.
void collage_team_park(collage_team *team);

// Registers the OpenMP of an operator library. Its number of threads for a region is 1 while a team's thread runs a task.
void collage_use_openmp(int (*get_max_threads)(void), void (*set_num_threads)(int));

// What TVM's generated code calls for a parallel loop (TVMBackendParallelLaunch). The team's threads share the loop; where
// there is no team, the calling thread does all of it.
int collage_parallel_launch(int (*body)(int task, void *environment, void *data), void *data, int tasks);

// What that code calls for memory while it runs, and to give it back (TVMBackendAllocWorkspace and
// TVMBackendFreeWorkspace); only the bytes and the memory are read. On 64-byte boundaries; NULL when there is none. A
// thread keeps some of what it gives back for the next calls.
void *collage_take_workspace(int device, int number, uint64_t bytes, int code, int bits);
int collage_give_workspace(int device, int number, void *memory);

// A task that writes the time to *(int64_t *)a: nanoseconds of CLOCK_MONOTONIC.
int collage_note_time(void *a, void *b, intptr_t n, void *c);

// A task that rewrites a byte of each cache line of the n bytes from a on, so that the lines belong to this core.
int collage_touch(void *a, void *b, intptr_t n, void *c);

// Events between tasks that run at the same time. A run records an event once, in the uint32_t counter at a. Each task
// that waits for it, once a run, has a uint32_t counter of its own at b. All counters begin at 0.
int collage_record(void *a, void *b, intptr_t n, void *c);
int collage_await(void *a, void *b, intptr_t n, void *c);

// A task that runs the n tasks at a one after another; there may be events among them. After one that fails only events
// are handled, so that no thread waits for ever. Returns the first status other than 0.
int collage_stream(void *a, void *b, intptr_t n, void *c);

// From now on a failure of C++ that nobody catches ends the process with this status, without a word: at its end Python
// tears daemon threads out of C++, which takes that for such a failure.
void collage_end_with(int status);

// A task that does nothing, for measuring what a launch costs.
int collage_nothing(void *a, void *b, intptr_t n, void *c);

#ifdef __cplusplus
}
#endif
#endif
