// A stand-in for NVIDIA's driver (libcuda.so.1), for tests without a GPU. It keeps the GPU's memory on the host, where
// only kernels and copies can reach it, and it does what is enqueued as late and in as odd an order as streams and
// events allow. So code that reads memory of the GPU crashes, and a dependency that nobody has enqueued gives wrong
// numbers. Machine code is a library for the CPU, which the stand-in for NVRTC has compiled.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

enum Status {
  SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
  NO_BINARY = 209, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, CAPTURE_UNSUPPORTED = 900, CAPTURE_UNJOINED = 904,
};

struct Op {
  int id = 0;
  std::string label;
  std::function<void()> run;
  std::vector<std::shared_ptr<Op>> needs;
  bool done = false, replayed = false;
};
using OpRef = std::shared_ptr<Op>;

struct Capture {
  std::vector<OpRef> nodes;
  struct Stream* origin = nullptr;
};

struct Stream {
  int number = 0;
  OpRef last;
  std::shared_ptr<Capture> capture;
};

struct Event {
  OpRef op;
  std::shared_ptr<Capture> capture;
  std::chrono::steady_clock::time_point at;
};

struct Graph {
  std::vector<OpRef> nodes;
};

struct Module {
  void* library = nullptr;
};

struct Function {
  void (*launch)(void**, const unsigned*, const unsigned*) = nullptr;
  unsigned parameters = 0;
  std::string name;
};

std::recursive_mutex lock;
std::mt19937 dice(7);
char* pool;
size_t pool_bytes;
std::map<size_t, size_t> allocated;  // offset and size
std::map<std::pair<void*, std::string>, Function*> functions;
int ops, streams, opened, captures, corrupted;
bool retained;
thread_local bool current;
thread_local std::vector<bool> pushed;
FILE* trace;
Stream none;

size_t setting(const char* name, size_t otherwise) {
  const char* found = getenv(name);
  return found ? strtoull(found, nullptr, 10) : otherwise;
}

void make_pool() {
  if (pool) return;
  pool_bytes = setting("COLLAGE_STANDIN_MIB", 256) << 20;
  pool = static_cast<char*>(mmap(nullptr, pool_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (const char* path = getenv("COLLAGE_STANDIN_TRACE")) trace = fopen(path, "a");
}

struct Opened {  // the GPU's memory can be reached while one of these lives
  Opened() { if (!opened++) mprotect(pool, pool_bytes, PROT_READ | PROT_WRITE); }
  ~Opened() { if (!--opened) mprotect(pool, pool_bytes, PROT_NONE); }
};

Stream* of(void* stream) { return stream ? static_cast<Stream*>(stream) : &none; }

OpRef enqueue(Stream* stream, std::string label, std::function<void()> run, OpRef also = nullptr) {
  auto op = std::make_shared<Op>();
  op->id = ++ops, op->label = std::move(label), op->run = std::move(run);
  if (stream->last) op->needs.push_back(stream->last);
  if (also) op->needs.push_back(also);
  stream->last = op;
  if (stream->capture) stream->capture->nodes.push_back(op);
  if (trace) {
    fprintf(trace, "%d %s stream %d%s:", op->id, op->label.c_str(), stream->number, stream->capture ? " captured" : "");
    for (auto& each : op->needs) fprintf(trace, " %d", each->id);
    fprintf(trace, "\n");
    fflush(trace);
  }
  return op;
}

// COLLAGE_STANDIN_CORRUPT_LATE is a part of the labels of what corrupts the context while it runs, so that the next call
// that waits for anything fails, and all calls after it. With COLLAGE_STANDIN_IN_GRAPHS it does so in graphs only.
bool corrupts(const Op& op) {
  const char* label = getenv("COLLAGE_STANDIN_CORRUPT_LATE");
  return label && strstr(op.label.c_str(), label) && (op.replayed || !getenv("COLLAGE_STANDIN_IN_GRAPHS"));
}

void execute(const OpRef& target) {
  std::vector<OpRef> left, waiting{target};
  std::set<Op*> seen;
  while (!waiting.empty()) {
    OpRef op = waiting.back();
    waiting.pop_back();
    if (!op || op->done || !seen.insert(op.get()).second) continue;
    left.push_back(op);
    for (auto& each : op->needs) waiting.push_back(each);
  }
  Opened opened;
  while (!left.empty()) {
    std::vector<size_t> ready;
    for (size_t i = 0; i < left.size(); ++i)
      if (std::all_of(left[i]->needs.begin(), left[i]->needs.end(), [](const OpRef& each) { return each->done; }))
        ready.push_back(i);
    size_t chosen = ready[dice() % ready.size()];
    OpRef op = left[chosen];
    if (op->run && !corrupted) op->run();
    if (corrupts(*op)) corrupted = ILLEGAL_ADDRESS;
    op->done = true;
    op->needs.clear();
    left.erase(left.begin() + chosen);
  }
}

int usable() { return corrupted ? corrupted : current ? SUCCESS : INVALID_CONTEXT; }

std::string hex(const void* at) {
  char text[32];
  snprintf(text, sizeof text, "%p", at);
  return text;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int
#define GUARDED                                        \
  std::lock_guard<std::recursive_mutex> guard(lock);   \
  if (int status = usable()) return status

// For other stand-ins: enqueue a function on a stream.
extern "C" __attribute__((visibility("default"))) void collage_standin_enqueue(
    void* stream, const char* label, std::function<void()>* run) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  enqueue(of(stream), label, *run);
}

// For stand-ins in Python: enqueue a call with a number.
API collage_standin_call(void* stream, void (*run)(int), int number) {
  GUARDED;
  enqueue(of(stream), "call", [=] { run(number); });
  return SUCCESS;
}

API cuInit(unsigned) { return SUCCESS; }
API cuDriverGetVersion(int* version) { return *version = int(setting("COLLAGE_STANDIN_CUDA", 13000)), SUCCESS; }
API cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
API cuDeviceGet(int* device, int index) { return *device = index, SUCCESS; }
API cuDeviceGetName(char* name, int size, int) {
  const char* found = getenv("COLLAGE_STANDIN_NAME");
  return snprintf(name, size, "%s", found ? found : "Stand-in GPU"), SUCCESS;
}
API cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 75: *value = int(setting("COLLAGE_STANDIN_SM", 90)) / 10; return SUCCESS;
    case 76: *value = int(setting("COLLAGE_STANDIN_SM", 90)) % 10; return SUCCESS;
    case 38: *value = 1 << 18; return SUCCESS;
    case 16: *value = 132; return SUCCESS;
  }
  return INVALID_VALUE;
}
API cuDeviceGetPCIBusId(char* text, int size, int) { return snprintf(text, size, "0000:3B:00.0"), SUCCESS; }
API cuDeviceTotalMem_v2(size_t* size, int) { return *size = setting("COLLAGE_STANDIN_MIB", 256) << 20, SUCCESS; }
API cuDevicePrimaryCtxRetain(void** context, int) { return make_pool(), retained = true, *context = &none, SUCCESS; }
API cuCtxSetCurrent(void* context) { return current = context == &none && retained, SUCCESS; }
API cuCtxPushCurrent_v2(void* context) {
  pushed.push_back(current);
  return cuCtxSetCurrent(context);
}
API cuCtxPopCurrent_v2(void** context) {
  *context = current ? &none : nullptr;
  if (pushed.empty()) return INVALID_CONTEXT;
  current = pushed.back();
  return pushed.pop_back(), SUCCESS;
}
API cuCtxGetCurrent(void** context) { return *context = current ? &none : nullptr, SUCCESS; }
API cuCtxSynchronize() { return SUCCESS; }

API cuMemAlloc_v2(uint64_t* address, size_t size) {
  GUARDED;
  if (captures) return CAPTURE_UNSUPPORTED;
  if (size == setting("COLLAGE_STANDIN_DENIED", 0)) return OUT_OF_MEMORY;
  size_t offset = 0;
  for (auto& [begin, length] : allocated) {
    if (offset + size <= begin) break;
    offset = (begin + length + 511) / 512 * 512;
  }
  if (offset + size > pool_bytes) return OUT_OF_MEMORY;
  allocated[offset] = size;
  return *address = reinterpret_cast<uint64_t>(pool + offset), SUCCESS;
}
API cuMemFree_v2(uint64_t address) {
  GUARDED;
  return allocated.erase(reinterpret_cast<char*>(address) - pool) ? SUCCESS : INVALID_VALUE;
}
API cuMemGetInfo_v2(size_t* free, size_t* total) {
  GUARDED;
  *free = *total = pool_bytes;
  for (auto& [_, length] : allocated) *free -= std::min(*free, length);
  return SUCCESS;
}
API cuMemHostRegister_v2(void*, size_t, unsigned) { return usable(); }
API cuMemHostUnregister(void*) { return usable(); }

static int copy(uint64_t target, uint64_t source, size_t size, void* stream, bool from, bool to) {
  auto inside = [](uint64_t at, size_t size) {
    auto begin = reinterpret_cast<uint64_t>(pool);
    return at >= begin && at + size <= begin + pool_bytes;
  };
  if (inside(source, size) != from || inside(target, size) != to) return INVALID_VALUE;
  auto a = reinterpret_cast<void*>(target), b = reinterpret_cast<void*>(source);
  enqueue(of(stream), "copy " + hex(b) + " " + hex(a), [=] { memmove(a, b, size); });
  return SUCCESS;
}
API cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t size, void* stream) {
  GUARDED;
  return copy(target, reinterpret_cast<uint64_t>(source), size, stream, false, true);
}
API cuMemcpyDtoHAsync_v2(void* target, uint64_t source, size_t size, void* stream) {
  GUARDED;
  return copy(reinterpret_cast<uint64_t>(target), source, size, stream, true, false);
}
API cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t size, void* stream) {
  GUARDED;
  return copy(target, source, size, stream, true, true);
}
API cuMemsetD8Async(uint64_t target, unsigned char byte, size_t size, void* stream) {
  GUARDED;
  enqueue(of(stream), "fill", [=] { memset(reinterpret_cast<void*>(target), byte, size); });
  return SUCCESS;
}

API cuModuleLoadData(void** module, const void* image) {
  GUARDED;
  auto bytes = static_cast<const char*>(image);
  if (memcmp(bytes, "\x7f" "ELF", 4) == 0) return NO_BINARY;  // machine code of a real GPU
  if (memcmp(bytes, "CPU!", 4)) return INVALID_IMAGE;
  uint64_t size;
  memcpy(&size, bytes + 4, sizeof size);
  int file = memfd_create("kernels", 0);
  if (write(file, bytes + 12, size) != ssize_t(size)) return INVALID_IMAGE;
  auto path = "/proc/self/fd/" + std::to_string(file);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), INVALID_IMAGE;  // the file stays open: names must differ
  return *module = new Module{library}, SUCCESS;
}
API cuModuleGetFunction(void** function, void* module, const char* name) {
  GUARDED;
  void* library = static_cast<Module*>(module)->library;
  auto*& found = functions[{library, name}];
  if (!found) {
    auto launch = dlsym(library, (std::string("launch_") + name).c_str());
    auto count = static_cast<unsigned*>(dlsym(library, (std::string("parameters_") + name).c_str()));
    if (!launch || !count) return functions.erase({library, name}), NOT_FOUND;
    found = new Function{reinterpret_cast<decltype(Function::launch)>(launch), *count, name};
  }
  return *function = found, SUCCESS;
}
API cuModuleUnload(void*) { return usable(); }
API cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned x, unsigned y, unsigned z,
                   unsigned, void* stream, void** parameters, void**) {
  GUARDED;
  auto found = static_cast<Function*>(function);
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || x * y * z < 1 || x * y * z > 1024) return INVALID_VALUE;
  std::vector<void*> values(found->parameters);
  std::string label = "kernel " + found->name;
  for (size_t i = 0; i < values.size(); ++i) {
    memcpy(&values[i], parameters[i], sizeof(void*));
    label += " " + hex(values[i]);
  }
  std::vector<unsigned> grid{gx, gy, gz}, threads{x, y, z};
  enqueue(of(stream), label, [=]() mutable { found->launch(values.data(), grid.data(), threads.data()); });
  if (setting("COLLAGE_STANDIN_CORRUPT", 0) && strstr(found->name.c_str(), getenv("COLLAGE_STANDIN_KERNEL")))
    corrupted = ILLEGAL_ADDRESS;
  return SUCCESS;
}

API cuStreamCreate(void** stream, unsigned) {
  GUARDED;
  auto made = new Stream;
  made->number = ++streams;
  return *stream = made, SUCCESS;
}
API cuStreamDestroy_v2(void*) { return usable(); }
API cuStreamSynchronize(void* stream) {
  GUARDED;
  if (of(stream)->capture) return CAPTURE_UNSUPPORTED;
  execute(of(stream)->last);
  of(stream)->last = nullptr;
  return usable();
}
API cuStreamWaitEvent(void* stream, void* event, unsigned) {
  GUARDED;
  auto waiting = of(stream);
  auto found = static_cast<Event*>(event);
  if (found->capture && !waiting->capture) waiting->capture = found->capture, waiting->last = nullptr;
  if (found->op) enqueue(waiting, "wait", nullptr, found->op);
  return SUCCESS;
}
API cuStreamBeginCapture_v2(void* stream, int) {
  GUARDED;
  if (!stream || of(stream)->capture) return CAPTURE_UNSUPPORTED;
  execute(of(stream)->last);
  of(stream)->last = nullptr;
  of(stream)->capture = std::make_shared<Capture>();
  of(stream)->capture->origin = of(stream);
  return ++captures, SUCCESS;
}
API cuStreamEndCapture(void* stream, void** graph) {
  GUARDED;
  auto capture = of(stream)->capture;
  if (!capture || capture->origin != of(stream)) return CAPTURE_UNSUPPORTED;
  std::set<Op*> joined;
  std::vector<OpRef> waiting{of(stream)->last};
  while (!waiting.empty()) {
    OpRef op = waiting.back();
    waiting.pop_back();
    if (op && joined.insert(op.get()).second)
      for (auto& each : op->needs) waiting.push_back(each);
  }
  of(stream)->capture = nullptr, of(stream)->last = nullptr;
  --captures;
  if (joined.size() != capture->nodes.size()) return CAPTURE_UNJOINED;
  return *graph = new Graph{capture->nodes}, SUCCESS;
}

API cuEventCreate(void** event, unsigned) { return *event = new Event, usable(); }
API cuEventDestroy_v2(void*) { return usable(); }
API cuEventRecord(void* event, void* stream) {
  GUARDED;
  auto found = static_cast<Event*>(event);
  found->op = enqueue(of(stream), "record", [=] { found->at = std::chrono::steady_clock::now(); });
  found->capture = of(stream)->capture;
  return SUCCESS;
}
API cuEventSynchronize(void* event) {
  GUARDED;
  execute(static_cast<Event*>(event)->op);
  return usable();
}
API cuEventElapsedTime(float* ms, void* first, void* last) {
  GUARDED;
  auto a = static_cast<Event*>(first), b = static_cast<Event*>(last);
  if (!a->op || !b->op || !a->op->done || !b->op->done) return INVALID_VALUE;
  return *ms = std::chrono::duration<float, std::milli>(b->at - a->at).count(), SUCCESS;
}

API cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) {
  GUARDED;
  return *made = new Graph(*static_cast<Graph*>(graph)), SUCCESS;
}
API cuGraphLaunch(void* graph, void* stream) {
  GUARDED;
  auto target = of(stream);
  if (target->capture) return CAPTURE_UNSUPPORTED;
  auto begin = enqueue(target, "graph", nullptr);
  std::map<Op*, OpRef> copies;
  std::vector<OpRef> all;
  for (auto& node : static_cast<Graph*>(graph)->nodes) {
    auto copy = std::make_shared<Op>();
    copy->id = node->id, copy->label = node->label, copy->run = node->run, copy->replayed = true;
    copy->needs.push_back(begin);
    for (auto& each : node->needs)
      if (copies.count(each.get())) copy->needs.push_back(copies[each.get()]);
    copies[node.get()] = copy;
    all.push_back(copy);
  }
  auto end = enqueue(target, "end of graph", nullptr);
  end->needs.insert(end->needs.end(), all.begin(), all.end());
  return SUCCESS;
}
API cuGraphDestroy(void* graph) { return delete static_cast<Graph*>(graph), SUCCESS; }
API cuGraphExecDestroy(void* graph) { return delete static_cast<Graph*>(graph), SUCCESS; }

static const char* name_of(int status) {
  switch (status) {
    case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
    case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
    case INVALID_CONTEXT: return "CUDA_ERROR_INVALID_CONTEXT";
    case INVALID_IMAGE: return "CUDA_ERROR_INVALID_IMAGE";
    case NO_BINARY: return "CUDA_ERROR_NO_BINARY_FOR_GPU";
    case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
    case ILLEGAL_ADDRESS: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case CAPTURE_UNSUPPORTED: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case CAPTURE_UNJOINED: return "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
  }
  return "CUDA_ERROR_UNKNOWN";
}
API cuGetErrorName(int status, const char** text) { return *text = name_of(status), SUCCESS; }
API cuGetErrorString(int, const char** text) { return *text = "the stand-in says so", SUCCESS; }
