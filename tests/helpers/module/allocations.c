// Preloaded into a process, counts how often memory is asked for and given back while a launch list runs, by the
// threads that run it, and for which library. glibc only.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

enum { kDepth = 16, kLibraries = 32 };

static atomic_int counting;
static atomic_flag lock = ATOMIC_FLAG_INIT;
static struct {
  char name[256];
  long count;
} found[kLibraries];
static _Thread_local int inside, member;

__attribute__((constructor)) static void warm_up(void) {
  void *frames[kDepth];
  backtrace(frames, kDepth);  // its first call allocates
}

static int has(const char *path, const char *part) { return path != NULL && strstr(path, part) != NULL; }

// Who asked: the innermost library that is neither this one nor the C or C++ runtime.
static void note(void) {
  if (!member || !atomic_load_explicit(&counting, memory_order_relaxed) || inside) return;
  inside = 1;
  void *frames[kDepth];
  const int depth = backtrace(frames, kDepth);
  const char *who = "unknown";
  for (int i = 1; i < depth; ++i) {
    Dl_info info;
    if (!dladdr(frames[i], &info) || has(info.dli_fname, "allocations.so") || has(info.dli_fname, "libstdc++") ||
        has(info.dli_fname, "libc.so"))
      continue;
    const char *slash = strrchr(info.dli_fname, '/');
    who = slash != NULL ? slash + 1 : info.dli_fname;
    break;
  }
  while (atomic_flag_test_and_set(&lock)) continue;
  for (int i = 0; i < kLibraries; ++i) {
    if (found[i].count == 0) strncpy(found[i].name, who, sizeof found[i].name - 1);
    if (strcmp(found[i].name, who) != 0) continue;
    ++found[i].count;
    break;
  }
  atomic_flag_clear(&lock);
  inside = 0;
}

void *malloc(size_t size) { return note(), __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return note(), __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return note(), __libc_realloc(old, size); }
void *memalign(size_t alignment, size_t size) { return note(), __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return note(), __libc_memalign(alignment, size); }

void free(void *old) {
  if (old != NULL) note();
  __libc_free(old);
}

int posix_memalign(void **place, size_t alignment, size_t size) {
  note();
  void *made = __libc_memalign(alignment, size);
  if (made == NULL) return 12;  // ENOMEM
  *place = made;
  return 0;
}

void *mmap(void *at, size_t length, int protection, int flags, int file, off_t offset) {
  note();
  return (void *)syscall(SYS_mmap, at, length, protection, flags, file, offset);
}

// Tasks of a launch list (collage_fn), one for each thread: begin to count, and stop.
int allocations_count(void *a, void *b, intptr_t on, void *c) {
  (void)a, (void)b, (void)c;
  member = 1;
  atomic_store(&counting, (int)on);
  return 0;
}

// A task that asks for memory: were it not counted, nothing would be.
int allocations_one(void *a, void *b, intptr_t n, void *c) {
  (void)a, (void)b, (void)c;
  void *volatile block = malloc((size_t)n);
  free(block);
  return 0;
}

// The i-th library that asked, and how often; NULL when there are no more.
const char *allocations_by(int i, long *count) {
  if (i >= kLibraries || found[i].count == 0) return NULL;
  *count = found[i].count;
  return found[i].name;
}
