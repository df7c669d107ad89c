// Runs programs of operators on tables, block by block; see table.h.

#include "table.h"

#include <stdlib.h>

#include <type_traits>

#include "kernels.h"

#if COLLAGE_X86

#include <math.h>
#include <string.h>

#include <algorithm>
#include <limits>

#include "table_lanes.h"
#include "table_steps.h"

namespace {

using namespace collage;

// The memory that a thread works in. It grows with the programs that the thread runs.
struct Memory {
  char *bytes = nullptr;
  int64_t size = 0;

  ~Memory() { free(bytes); }

  bool has(int64_t wanted) {
    if (wanted <= size) return true;
    free(bytes);
    size = 0;
    const int64_t rounded = (wanted + 4095) / 4096 * 4096;
    bytes = static_cast<char *>(aligned_alloc(64, size_t(rounded)));
    if (bytes == nullptr) return false;
    memset(bytes, 0, size_t(rounded));
    size = rounded;
    return true;
  }
};

thread_local Memory memory;

void run(const collage_table_program &program, const collage_table_call &call, const Block &b) {
  char *const scratch = b.workspace + program.row_bytes * b.room;
  for (int64_t i = 0; i < program.count; ++i) {
    const Step &s = program.steps[i];
    if (s.only == (b.room == 1 ? 1 : 2)) continue;
    const bool narrow = s.kinds[0] == COLLAGE_F32;
    const auto either = [&](auto in_float, auto in_double) { narrow ? in_float(s, b) : in_double(s, b); };
    switch (s.op) {
      case COLLAGE_TABLE_LOAD: load_step(s, b, call.inputs[s.sizes[0]]); break;
      case COLLAGE_TABLE_STORE: store_step(s, b, call.outputs[s.sizes[0]]); break;
      case COLLAGE_TABLE_CONVERT: convert_step(s, b); break;
      case COLLAGE_TABLE_BINS: either(bins_step<float>, bins_step<double>); break;
      case COLLAGE_TABLE_TREES: trees_step(s, b, call.inputs, scratch); break;
      case COLLAGE_TABLE_MEMBER: member_step(s, b); break;
      case COLLAGE_TABLE_UNARY: either(unary_step<float>, unary_step<double>); break;
      case COLLAGE_TABLE_BINARY:
      case COLLAGE_TABLE_CONSTANT:
        s.kinds[0] == COLLAGE_I64 ? binary_step<int64_t>(s, b) : either(binary_step<float>, binary_step<double>);
        break;
      case COLLAGE_TABLE_MAP: map_step(s, b); break;
      case COLLAGE_TABLE_NORMALIZE: either(normalize_step<float>, normalize_step<double>); break;
      case COLLAGE_TABLE_LINEAR: either(linear_step<float>, linear_step<double>); break;
      case COLLAGE_TABLE_VECTORS: either(vectors_step<float>, vectors_step<double>); break;
      case COLLAGE_TABLE_REDUCE: either(reduce_step<float>, reduce_step<double>); break;
      case COLLAGE_TABLE_SOFTMAX: either(softmax_step<float>, softmax_step<double>); break;
      case COLLAGE_TABLE_LARGEST: either(largest_step<float>, largest_step<double>); break;
      case COLLAGE_TABLE_SELECT:
        s.kinds[0] == COLLAGE_I64 ? select_step<int64_t>(s, b) : either(select_step<float>, select_step<double>);
        break;
      case COLLAGE_TABLE_GATHER:
        s.kinds[0] == COLLAGE_I64 ? gather_step<int64_t>(s, b) : either(gather_step<float>, gather_step<double>);
        break;
      case COLLAGE_TABLE_SOFT: soft_step(s, b, scratch); break;
    }
  }
}

int run_rows(const collage_table_program &program, const collage_table_call &call, int64_t &next, bool shared) {
  const bool singly = call.rows <= program.singly;
  const int64_t room = singly ? 1 : COLLAGE_TABLE_BLOCK, turn = singly ? 1 : call.turn;
  // The next block's rows are read beyond a column of bins, and 64 bytes beyond the bins of one row.
  if (!memory.has(program.row_bytes * room + program.scratch_bytes)) return COLLAGE_UNAVAILABLE;
  while (true) {
    const int64_t first = shared ? __atomic_fetch_add(&next, turn, __ATOMIC_RELAXED) : next;
    if (!shared) next += turn;
    if (first >= call.rows) return 0;
    const int64_t ahead = turn * (shared ? call.shares : 1);
    run(program, call, {memory.bytes, room, std::min(turn, call.rows - first), first, ahead, call.rows});
  }
}

}  // namespace

extern "C" int collage_table(void *a, void *b, intptr_t, void *) {
  auto &call = *static_cast<collage_table_call *>(b);
  const int status = run_rows(*static_cast<const collage_table_program *>(a), call, call.next, true);
  if (__atomic_add_fetch(&call.done, 1, __ATOMIC_ACQ_REL) == call.shares) {
    __atomic_store_n(&call.next, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&call.done, 0, __ATOMIC_RELEASE);
  }
  return status;
}

extern "C" int collage_table_alone(void *a, void *b, intptr_t, void *) {
  int64_t next = 0;
  return run_rows(
      *static_cast<const collage_table_program *>(a), *static_cast<const collage_table_call *>(b), next, false);
}

extern "C" int collage_table_rows(void) {
  const Cpu &here = cpu();
#ifdef COLLAGE_AVX2
  return here.avx2 && here.bmi2 ? kRows : 0;
#else
  return here.vbmi && here.bmi2 ? kRows : 0;
#endif
}

#include "target_end.h"

#else

extern "C" int collage_table(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }
extern "C" int collage_table_alone(void *, void *, intptr_t, void *) { return COLLAGE_UNAVAILABLE; }
extern "C" int collage_table_rows(void) { return 0; }

#endif
