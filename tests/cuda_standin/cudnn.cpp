// A stand-in for cuDNN (libcudnn.so.9): convolutions of float32 by their definition, in float64, enqueued on the streams of
// the stand-in for the driver.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace {

enum Status { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };

struct Tensor {
  std::vector<int> dims, strides;
};
struct Filter {
  std::vector<int> dims;
};
struct Convolution {
  std::vector<int> pads, strides, dilations;
  int groups = 1, math = 0;
};
struct Activation {
  int mode = -1, nan = 0;
};
struct Handle {
  void* stream = nullptr;
};
struct Result {
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};

using Enqueue = void (*)(void*, const char*, std::function<void()>*);
void enqueue(void* handle, const char* label, std::function<void()> run) {
  static auto found = reinterpret_cast<Enqueue>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "collage_standin_enqueue"));
  found(static_cast<Handle*>(handle)->stream, label, &run);
}

bool fits(const Tensor& data, const Filter& filter, const Convolution& about, const Tensor& made) {
  size_t rank = about.pads.size();
  if (data.dims.size() != rank + 2 || filter.dims.size() != rank + 2 || made.dims.size() != rank + 2) return false;
  if (data.dims[0] != made.dims[0] || data.dims[1] != filter.dims[1] * about.groups) return false;
  if (made.dims[1] != filter.dims[0] || filter.dims[0] % about.groups) return false;
  for (size_t i = 0; i < rank; ++i) {
    int reach = (filter.dims[2 + i] - 1) * about.dilations[i] + 1;
    if ((data.dims[2 + i] + 2 * about.pads[i] - reach) / about.strides[i] + 1 != made.dims[2 + i]) return false;
  }
  return about.math == 3;
}

// Calls touch(data, filter, made) with the places of each triple of elements that meet.
void meet(const Tensor& data, const Filter& filter, const Convolution& about, const Tensor& made,
          const std::function<void(size_t, size_t, size_t)>& touch) {
  size_t rank = about.pads.size();
  int per_group = made.dims[1] / about.groups, inputs = filter.dims[1];
  std::vector<int> at(rank), tap(rank);
  auto next = [&](std::vector<int>& place, const std::vector<int>& dims) {
    for (size_t i = rank; i-- > 0;) {
      if (++place[i] < dims[2 + i]) return true;
      place[i] = 0;
    }
    return false;
  };
  for (int n = 0; n < made.dims[0]; ++n)
    for (int o = 0; o < made.dims[1]; ++o)
      for (int c = 0; c < inputs; ++c) {
        at.assign(rank, 0);
        do {
          tap.assign(rank, 0);
          do {
            size_t x = size_t(n) * data.strides[0] + size_t(o / per_group * inputs + c) * data.strides[1];
            size_t y = size_t(n) * made.strides[0] + size_t(o) * made.strides[1];
            size_t w = size_t(o) * inputs + c;
            bool inside = true;
            for (size_t i = 0; i < rank; ++i) {
              int place = at[i] * about.strides[i] - about.pads[i] + tap[i] * about.dilations[i];
              inside = inside && place >= 0 && place < data.dims[2 + i];
              x += place * data.strides[2 + i];
              y += at[i] * made.strides[2 + i];
              w = w * filter.dims[2 + i] + tap[i];
            }
            if (inside) touch(x, w, y);
          } while (next(tap, filter.dims));
        } while (next(at, made.dims));
      }
}

size_t size_of(const Tensor& tensor) {
  size_t found = 1;
  for (int each : tensor.dims) found *= each;
  return found;
}

float relu(double x) { return float(std::isnan(x) || x > 0 ? x : 0); }

template <class T> T& as(void* at) { return *static_cast<T*>(at); }

int offer(int most, int* count, Result* results, bool good) {
  if (!good) return BAD_PARAM;
  *count = most < 3 ? most : 3;
  for (int i = 0; i < *count; ++i) results[i] = {};
  for (int i = 0; i < *count; ++i) results[i].algorithm = i, results[i].memory = 512 * i, results[i].math = 3;
  if (*count > 1) results[1].status = NOT_SUPPORTED;
  return SUCCESS;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int
#define DESCRIPTOR(NAME)                                                                         \
  API cudnnCreate##NAME##Descriptor(void** made) { return *made = new NAME, SUCCESS; }           \
  API cudnnDestroy##NAME##Descriptor(void* made) { return delete static_cast<NAME*>(made), SUCCESS; }

DESCRIPTOR(Tensor)
DESCRIPTOR(Filter)
DESCRIPTOR(Convolution)
DESCRIPTOR(Activation)

API cudnnCreate(void** handle) { return *handle = new Handle, SUCCESS; }
API cudnnSetStream(void* handle, void* stream) { return as<Handle>(handle).stream = stream, SUCCESS; }
API cudnnSetTensorNdDescriptor(void* tensor, int type, int count, const int* dims, const int* strides) {
  as<Tensor>(tensor) = {{dims, dims + count}, {strides, strides + count}};
  return type == 0 && count >= 4 ? SUCCESS : BAD_PARAM;
}
API cudnnSetFilterNdDescriptor(void* filter, int type, int format, int count, const int* dims) {
  as<Filter>(filter).dims = {dims, dims + count};
  return type == 0 && format == 0 ? SUCCESS : BAD_PARAM;
}
API cudnnSetConvolutionNdDescriptor(void* about, int count, const int* pads, const int* strides, const int* dilations,
                                    int mode, int type) {
  auto& found = as<Convolution>(about);
  found.pads = {pads, pads + count}, found.strides = {strides, strides + count};
  found.dilations = {dilations, dilations + count};
  return mode == 1 && type == 0 ? SUCCESS : BAD_PARAM;
}
API cudnnSetConvolutionGroupCount(void* about, int groups) { return as<Convolution>(about).groups = groups, SUCCESS; }
API cudnnSetConvolutionMathType(void* about, int math) { return as<Convolution>(about).math = math, SUCCESS; }
API cudnnSetActivationDescriptor(void* activation, int mode, int nan, double) {
  as<Activation>(activation) = {mode, nan};
  return mode == 1 && nan == 1 ? SUCCESS : BAD_PARAM;
}
API cudnnGetConvolutionForwardAlgorithm_v7(void*, void* data, void* filter, void* about, void* made, int most, int* count,
                                           Result* results) {
  return offer(most, count, results,
               fits(as<Tensor>(data), as<Filter>(filter), as<Convolution>(about), as<Tensor>(made)));
}
API cudnnGetConvolutionBackwardDataAlgorithm_v7(void*, void* filter, void* made, void* about, void* data, int most,
                                                int* count, Result* results) {
  return offer(most, count, results,
               fits(as<Tensor>(data), as<Filter>(filter), as<Convolution>(about), as<Tensor>(made)));
}

static int forward(void* handle, void* x, const float* data, void* w, const float* filter, void* about, int algorithm,
                   void* space, size_t room, void* y, float* made, float added, const float* other, const float* bias,
                   bool activated) {
  Tensor X = as<Tensor>(x), Y = as<Tensor>(y);
  Filter W = as<Filter>(w);
  Convolution C = as<Convolution>(about);
  if (!fits(X, W, C, Y) || algorithm < 0 || algorithm > 2 || room < 512u * algorithm) return BAD_PARAM;
  enqueue(handle, "convolution", [=] {
    if (room) memset(space, 0xFF, room);
    std::vector<double> sums(size_of(Y));
    meet(X, W, C, Y, [&](size_t a, size_t b, size_t c) { sums[c] += double(data[a]) * filter[b]; });
    for (size_t i = 0; i < sums.size(); ++i) {
      double sum = sums[i] + (added ? added * other[i] : 0) + (bias ? bias[i / Y.strides[1] % Y.dims[1]] : 0);
      made[i] = activated ? relu(sum) : float(sum);
    }
  });
  return SUCCESS;
}
API cudnnConvolutionForward(void* handle, const float* alpha, void* x, const float* data, void* w, const float* filter,
                            void* about, int algorithm, void* space, size_t room, const float* beta, void* y, float* made) {
  if (*alpha != 1 || *beta != 0) return BAD_PARAM;
  return forward(handle, x, data, w, filter, about, algorithm, space, room, y, made, 0, nullptr, nullptr, false);
}
API cudnnConvolutionBiasActivationForward(void* handle, const float* alpha, void* x, const float* data, void* w,
                                          const float* filter, void* about, int algorithm, void* space, size_t room,
                                          const float* added, void*, const float* other, void* b, const float* bias,
                                          void* activation, void* y, float* made) {
  if (*alpha != 1 || !bias || as<Tensor>(b).dims[1] != as<Tensor>(y).dims[1] || as<Activation>(activation).mode != 1)
    return BAD_PARAM;
  return forward(handle, x, data, w, filter, about, algorithm, space, room, y, made, *added, other, bias, true);
}
API cudnnConvolutionBackwardData(void* handle, const float* alpha, void* w, const float* filter, void* y, const float* made,
                                 void* about, int algorithm, void* space, size_t room, const float* beta, void* x,
                                 float* data) {
  Tensor X = as<Tensor>(x), Y = as<Tensor>(y);
  Filter W = as<Filter>(w);
  Convolution C = as<Convolution>(about);
  if (*alpha != 1 || *beta != 0 || !fits(X, W, C, Y) || algorithm < 0 || algorithm > 2 || room < 512u * algorithm)
    return BAD_PARAM;
  enqueue(handle, "gradient", [=] {
    if (room) memset(space, 0xFF, room);
    std::vector<double> sums(size_of(X));
    meet(X, W, C, Y, [&](size_t a, size_t b, size_t c) { sums[a] += double(made[c]) * filter[b]; });
    for (size_t i = 0; i < sums.size(); ++i) data[i] = float(sums[i]);
  });
  return SUCCESS;
}
API cudnnAddTensor(void* handle, const float* alpha, void* a, const float* added, const float* beta, void* c, float* made) {
  Tensor A = as<Tensor>(a), C = as<Tensor>(c);
  if (*alpha != 1 || *beta != 1 || A.dims[1] != C.dims[1] || size_of(A) != size_t(A.dims[1])) return BAD_PARAM;
  enqueue(handle, "add", [=] {
    for (size_t i = 0; i < size_of(C); ++i) made[i] += added[i / C.strides[1] % C.dims[1]];
  });
  return SUCCESS;
}
API cudnnActivationForward(void* handle, void* activation, const float* alpha, void* x, const float* data,
                           const float* beta, void*, float* made) {
  if (*alpha != 1 || *beta != 0 || as<Activation>(activation).mode != 1) return BAD_PARAM;
  Tensor X = as<Tensor>(x);
  enqueue(handle, "relu", [=] {
    for (size_t i = 0; i < size_of(X); ++i) made[i] = relu(data[i]);
  });
  return SUCCESS;
}
