// CUDA's threads on a CPU, for tests of generated kernels: blocks one after another, and a block's threads as fibers
// that take turns at barriers and shuffles. It has what TVM's source uses of CUDA, and nothing else.
#pragma once
#undef _FORTIFY_SOURCE  // it forbids jumps to another stack
#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __align__(n) alignas(n)

struct Extent {
  unsigned x, y, z;
};
inline Extent gridDim, blockDim, blockIdx, threadIdx;

template <class T, int N> struct alignas(sizeof(T) * N) Vector;
template <class T> struct alignas(sizeof(T) * 2) Vector<T, 2> { T x, y; };
template <class T> struct Vector<T, 3> { T x, y, z; };
template <class T> struct alignas(sizeof(T) * 4) Vector<T, 4> { T x, y, z, w; };
#define COLLAGE_VECTORS(NAME, T)                                             \
  using NAME##1 = T;                                                         \
  using NAME##2 = Vector<T, 2>;                                              \
  using NAME##3 = Vector<T, 3>;                                              \
  using NAME##4 = Vector<T, 4>;                                              \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                 \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }         \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
COLLAGE_VECTORS(float, float)
COLLAGE_VECTORS(double, double)
COLLAGE_VECTORS(int, int)
COLLAGE_VECTORS(uint, unsigned)
COLLAGE_VECTORS(char, signed char)
COLLAGE_VECTORS(uchar, unsigned char)
COLLAGE_VECTORS(short, short)
COLLAGE_VECTORS(ushort, unsigned short)
COLLAGE_VECTORS(longlong, long long)

// CUDA's max and min of floats give the other operand for NaN.
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
#define COLLAGE_LIMITS(T)                            \
  inline T max(T a, T b) { return a > b ? a : b; }   \
  inline T min(T a, T b) { return a < b ? a : b; }
COLLAGE_LIMITS(int)
COLLAGE_LIMITS(unsigned)
COLLAGE_LIMITS(long)
COLLAGE_LIMITS(long long)
COLLAGE_LIMITS(unsigned long)
// Tests are compiled so that no product is fused with a sum.
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __int_as_float(int bits) {
  float found;
  memcpy(&found, &bits, sizeof found);
  return found;
}
inline double __longlong_as_double(long long bits) {
  double found;
  memcpy(&found, &bits, sizeof found);
  return found;
}

namespace collage {

struct Barrier {
  unsigned members = 0, arrived = 0, generation = 0;
  void left() {
    --members;
    open();
  }
  void open() {
    if (members && arrived == members) arrived = 0, ++generation;
  }
};

struct Fiber {
  jmp_buf registers;
  bool begun = false;
  std::vector<char> stack = std::vector<char>(64 << 10);
  Extent index;
  bool done = false;
};

inline std::vector<Fiber> fibers;
inline std::vector<Barrier> warps;
inline std::vector<double> slots;  // what the threads of a warp show each other: 8 bytes each
inline Barrier block;
inline jmp_buf scheduler;
inline unsigned current;
inline void (*body)(void**);
inline void** arguments;

// Back to the scheduler. Jumps need no system calls, as swapcontext does, which took most of the time of kernels.
__attribute__((noinline)) inline void pause() {
  if (!_setjmp(fibers[current].registers)) _longjmp(scheduler, 1);
}

inline void wait(Barrier& barrier) {
  unsigned generation = barrier.generation;
  ++barrier.arrived;
  barrier.open();
  while (barrier.generation == generation) pause();
}

// What a fiber runs: its thread of one block after another.
inline void run_fiber() {
  for (;;) {
    body(arguments);
    fibers[current].done = true;
    block.left();
    warps[current / 32].left();
    pause();
  }
}

// Run a fiber until it pauses.
__attribute__((noinline)) inline void go_on(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.begun) _longjmp(fiber.registers, 1);
  fiber.begun = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.data();
  context.uc_stack.ss_size = fiber.stack.size();
  context.uc_link = nullptr;
  makecontext(&context, run_fiber, 0);
  setcontext(&context);
}

inline void run_block() {
  unsigned count = blockDim.x * blockDim.y * blockDim.z;
  fibers.resize(count);
  slots.assign(count, 0);
  warps.assign((count + 31) / 32, Barrier());
  block = Barrier{count};
  for (unsigned i = 0; i < count; ++i) {
    fibers[i].done = false;
    fibers[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    ++warps[i / 32].members;
  }
  for (unsigned left = count, turns = 0; left;) {
    if (++turns > 1u << 20) abort();  // a barrier that some thread never reaches
    for (unsigned i = 0; i < count; ++i) {
      if (fibers[i].done) continue;
      current = i;
      threadIdx = fibers[i].index;
      go_on(fibers[i]);
      left -= fibers[i].done;
    }
  }
}

template <class T> T exchange(T value, unsigned source) {
  static_assert(sizeof(T) <= 8);
  memcpy(&slots[current], &value, sizeof(T));
  wait(warps[current / 32]);
  if (source < fibers.size()) memcpy(&value, &slots[source], sizeof(T));
  wait(warps[current / 32]);
  return value;
}

template <class... P, size_t... I> void apply(void (*kernel)(P...), void** given, std::index_sequence<I...>) {
  kernel(reinterpret_cast<P>(given[I])...);
}
template <class... P> void apply(void (*kernel)(P...), void** given) {
  apply(kernel, given, std::index_sequence_for<P...>());
}

inline void launch(void (*wrapped)(void**), void** given, const unsigned* grid, const unsigned* threads) {
  body = wrapped, arguments = given;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {threads[0], threads[1], threads[2]};
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        run_block();
      }
}

}  // namespace collage

inline void __syncthreads() { collage::wait(collage::block); }
inline void __syncwarp(unsigned = ~0u) { collage::wait(collage::warps[collage::current / 32]); }
inline unsigned __activemask() { return ~0u; }
template <class T> T __shfl_sync(unsigned, T value, unsigned lane, unsigned width = 32) {
  return collage::exchange(value, collage::current / width * width + lane % width);
}
template <class T> T __shfl_down_sync(unsigned, T value, unsigned by, unsigned width = 32) {
  unsigned lane = collage::current % width;
  return collage::exchange(value, lane + by < width ? collage::current + by : collage::current);
}
template <class T> T __shfl_up_sync(unsigned, T value, unsigned by, unsigned width = 32) {
  unsigned lane = collage::current % width;
  return collage::exchange(value, lane >= by ? collage::current - by : collage::current);
}
template <class T> T __shfl_xor_sync(unsigned, T value, unsigned mask, unsigned width = 32) {
  return collage::exchange(value, collage::current ^ (mask % width));
}

#define alignas(n) __attribute__((aligned(n)))  // CUDA's compilers take it behind __shared__, where C++ does not
