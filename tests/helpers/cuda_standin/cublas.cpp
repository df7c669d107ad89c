// A stand-in for cuBLASLt (libcublasLt.so.13): products of matrices by their definition, in float64, enqueued on the streams
// of the stand-in for the driver. It reads descriptors as cublasLt.h numbers their attributes. Matrices are float32,
// float16 or bfloat16, and factors are rounded where TF32 is asked for.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "cudnn_program.h"

namespace {

using program::from_bits;
using program::rounded;
using program::to_bits;

// Numbers of cudaDataType_t as those of cuDNN.
int dtype_of(int type) { return type == 2 ? program::HALF : type == 14 ? program::BFLOAT16 : program::FLOAT; }
double get(const void* from, int type, int64_t at) {
  return type == 0 ? static_cast<const float*>(from)[at] : from_bits(static_cast<const uint16_t*>(from)[at], dtype_of(type));
}
void put(void* into, int type, int64_t at, double value) {
  if (type == 0) static_cast<float*>(into)[at] = float(value);
  else static_cast<uint16_t*>(into)[at] = to_bits(value, dtype_of(type));
}

enum Status { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };

struct Operation {
  int compute = 0, scale = 0;
  int32_t transposed_a = 0, transposed_b = 0;
  uint32_t epilogue = 1;
  const void* bias = nullptr;
};
struct Layout {
  int type = 0;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0, stride = 0;
  int32_t batch = 1;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = 7;
  uint32_t alignments[4] = {256, 256, 256, 256};
};
struct Result {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

using Enqueue = void (*)(void*, const char*, std::function<void()>*);
Enqueue enqueue() {
  static auto found = reinterpret_cast<Enqueue>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "collage_standin_enqueue"));
  return found;
}

bool has_bias(uint32_t epilogue) { return epilogue & 4; }

double activated(uint32_t epilogue, double x) {
  if (epilogue & 2) return std::isnan(x) || x > 0 ? x : 0;
  if (epilogue & 32) return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  return x;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

API cublasLtCreate(void** handle) { return *handle = new int(0), SUCCESS; }
API cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  auto found = new Operation;
  found->compute = compute, found->scale = scale;
  return *made = found, (compute == 68 || compute == 77) && scale == 0 ? SUCCESS : INVALID_VALUE;
}
API cublasLtMatmulDescSetAttribute(void* operation, int attribute, const void* value, size_t size) {
  auto found = static_cast<Operation*>(operation);
  struct { int number; void* at; size_t size; } known[] = {
      {3, &found->transposed_a, 4}, {4, &found->transposed_b, 4}, {7, &found->epilogue, 4}, {8, &found->bias, 8}};
  for (auto& each : known)
    if (each.number == attribute && each.size == size) return memcpy(each.at, value, size), SUCCESS;
  return INVALID_VALUE;
}
API cublasLtMatmulDescDestroy(void* operation) { return delete static_cast<Operation*>(operation), SUCCESS; }
API cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  auto found = new Layout;
  found->type = type, found->rows = rows, found->columns = columns, found->leading = leading;
  return *made = found, leading >= int64_t(rows) && (type == 0 || type == 2 || type == 14) ? SUCCESS : INVALID_VALUE;
}
API cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, size_t size) {
  auto found = static_cast<Layout*>(layout);
  if (attribute == 5 && size == 4) return memcpy(&found->batch, value, size), SUCCESS;
  if (attribute == 6 && size == 8) return memcpy(&found->stride, value, size), SUCCESS;
  return INVALID_VALUE;
}
API cublasLtMatrixLayoutDestroy(void* layout) { return delete static_cast<Layout*>(layout), SUCCESS; }
API cublasLtMatmulPreferenceCreate(void** made) { return *made = new Preference, SUCCESS; }
API cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t size) {
  auto found = static_cast<Preference*>(preference);
  if (attribute == 1 && size == 8) return memcpy(&found->workspace, value, size), SUCCESS;
  if (attribute == 3 && size == 4) return memcpy(&found->reductions, value, size), SUCCESS;
  if (attribute >= 5 && attribute <= 8 && size == 4)
    return memcpy(&found->alignments[attribute - 5], value, size), SUCCESS;
  return INVALID_VALUE;
}
API cublasLtMatmulPreferenceDestroy(void* preference) { return delete static_cast<Preference*>(preference), SUCCESS; }

static bool fits(const Operation& o, const Layout& a, const Layout& b, const Layout& d) {
  auto m = o.transposed_a ? a.columns : a.rows, k = o.transposed_a ? a.rows : a.columns;
  auto k2 = o.transposed_b ? b.columns : b.rows, n = o.transposed_b ? b.rows : b.columns;
  if (a.type != b.type || a.type != d.type || (o.compute == 77 && a.type != 0)) return false;
  return m == d.rows && n == d.columns && k == k2 && a.batch == d.batch && b.batch == d.batch &&
         has_bias(o.epilogue) == (o.bias != nullptr);
}

// Two algorithms, the second of which takes a workspace. Both add up as results are stored where that is allowed.
API cublasLtMatmulAlgoGetHeuristic(void*, void* operation, void* a, void* b, void* c, void* d, void* preference, int most,
                                   Result* results, int* count) {
  if (c != d || !fits(*static_cast<Operation*>(operation), *static_cast<Layout*>(a), *static_cast<Layout*>(b),
                      *static_cast<Layout*>(d)))
    return INVALID_VALUE;
  for (auto alignment : static_cast<Preference*>(preference)->alignments)
    if (alignment > 64) return NOT_SUPPORTED;
  *count = most < 2 ? most : 2;
  for (int i = 0; i < *count; ++i) {
    results[i] = {};
    results[i].algorithm[0] = 4711 + i;
    results[i].algorithm[1] = static_cast<Preference*>(preference)->reductions & 4;
    results[i].workspace = 1024 * i;
  }
  return SUCCESS;
}
API cublasLtMatmul(void*, void* operation, const float* alpha, const void* a, void* layout_a, const void* b,
                   void* layout_b, const float* beta, const void* c, void*, void* d, void* layout_d,
                   const uint64_t* algorithm, void* workspace, size_t size, void* stream) {
  Operation o = *static_cast<Operation*>(operation);
  Layout A = *static_cast<Layout*>(layout_a), B = *static_cast<Layout*>(layout_b), D = *static_cast<Layout*>(layout_d);
  if (!fits(o, A, B, D) || algorithm[0] - 4711 > 1 || size < 1024 * (algorithm[0] - 4711)) return INVALID_VALUE;
  float scale = *alpha, old = *beta;
  bool narrow = algorithm[1] && D.type != 0;
  std::function<void()> run = [=] {
    auto depth = o.transposed_a ? A.rows : A.columns;
    if (size) memset(workspace, 0xFF, size);
    for (int64_t batch = 0; batch < D.batch; ++batch)
      for (uint64_t column = 0; column < D.columns; ++column)
        for (uint64_t row = 0; row < D.rows; ++row) {
          double sum = 0;
          for (uint64_t i = 0; i < depth; ++i) {
            auto x = get(a, A.type, batch * A.stride + (o.transposed_a ? row * A.leading + i : i * A.leading + row));
            auto y = get(b, B.type, batch * B.stride + (o.transposed_b ? i * B.leading + column : column * B.leading + i));
            if (o.compute == 77) x = rounded(x, 11, -125, 128), y = rounded(y, 11, -125, 128);
            sum += x * y;
            if (narrow) sum = from_bits(to_bits(sum, dtype_of(D.type)), dtype_of(D.type));
          }
          auto at = batch * D.stride + column * D.leading + row;
          sum = scale * sum + (old ? old * get(c, D.type, at) : 0) + (has_bias(o.epilogue) ? get(o.bias, D.type, row) : 0);
          put(d, D.type, at, activated(o.epilogue, sum));
        }
  };
  enqueue()(stream, "product", &run);
  return SUCCESS;
}
