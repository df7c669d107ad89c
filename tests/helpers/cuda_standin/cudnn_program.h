// What the stand-in for cuDNN computes: operations on tensors, by their definitions, in float64. Tensors between two
// operations are rounded to their dtype, and what is multiplied to TF32 where the engine has tensor cores.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace program {

using Ints = std::vector<int64_t>;
using Numbers = std::vector<double>;
enum Dtype { FLOAT = 0, HALF = 2, BFLOAT16 = 9 };
enum Op { CONV = 10, GRADIENT = 12, POINTWISE = 13, MATMUL = 19, REDUCE = 22, RESAMPLE = 25, NORM = 29, SDPA = 41, SOFTMAX = 45 };

struct Tensor {
  int64_t uid = 0, dtype = 0, is_virtual = 0, by_value = 0;
  Ints dims, strides;
  int64_t size() const {
    int64_t found = 1;
    for (auto each : dims) found *= each;
    return found;
  }
};
struct Operation {
  int64_t op = 0, mode = 0, output = 0;  // positions of tensors
  Ints inputs, begin, end, strides, dilations, window;
  Numbers numbers;
};
struct Program {
  std::vector<Tensor> tensors;
  std::vector<Operation> operations;
};

// Text and back.
template <class T> void write(std::ostream& out, const std::vector<T>& values) {
  out << values.size() << ' ';
  for (auto each : values) out << each << ' ';
}
template <class T> void read(std::istream& in, std::vector<T>& values) {
  size_t count = 0;
  in >> count;
  if (count > 1000) count = 0;
  values.resize(count);
  for (auto& each : values) in >> each;
}
inline std::string text(const Program& found) {
  std::ostringstream out;
  out.precision(17);
  out << found.tensors.size() << ' ';
  for (auto& t : found.tensors) {
    out << t.uid << ' ' << t.dtype << ' ' << t.is_virtual << ' ' << t.by_value << ' ';
    write(out, t.dims), write(out, t.strides);
  }
  out << found.operations.size() << ' ';
  for (auto& o : found.operations) {
    out << o.op << ' ' << o.mode << ' ' << o.output << ' ';
    for (auto* each : {&o.inputs, &o.begin, &o.end, &o.strides, &o.dilations, &o.window}) write(out, *each);
    write(out, o.numbers);
  }
  return out.str();
}
inline Program parse(std::istream& in) {
  Program found;
  size_t count = 0;
  in >> count;
  found.tensors.resize(count < 1000 ? count : 0);
  for (auto& t : found.tensors) {
    in >> t.uid >> t.dtype >> t.is_virtual >> t.by_value;
    read(in, t.dims), read(in, t.strides);
  }
  in >> count;
  found.operations.resize(count < 1000 ? count : 0);
  for (auto& o : found.operations) {
    in >> o.op >> o.mode >> o.output;
    for (auto* each : {&o.inputs, &o.begin, &o.end, &o.strides, &o.dilations, &o.window}) read(in, *each);
    read(in, o.numbers);
  }
  return found;
}

// Elements of 16 bits, rounded to the nearest, ties to even.
inline double from_bits(uint16_t bits, int64_t dtype) {
  if (dtype == BFLOAT16) {
    uint32_t wide = uint32_t(bits) << 16;
    float found;
    return memcpy(&found, &wide, 4), found;
  }
  int exponent = bits >> 10 & 31, rest = bits & 1023;
  double sign = bits >> 15 ? -1 : 1;
  if (exponent == 31) return rest ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + rest, exponent - 25) : std::ldexp(rest, -24));
}
inline double rounded(double x, int digits, int least, int most) {  // significant bits, exponents of the smallest and largest
  if (!std::isfinite(x) || x == 0) return x;
  int exponent;
  std::frexp(x, &exponent);
  double step = std::ldexp(1.0, std::max(exponent, least) - digits), found = std::nearbyint(x / step) * step;
  return std::fabs(found) >= std::ldexp(1.0, most) ? std::copysign(INFINITY, x) : found;
}
inline double as(double x, int64_t dtype) {
  if (dtype == HALF) return rounded(x, 11, -13, 16);
  if (dtype == BFLOAT16) return rounded(x, 8, -125, 128);
  return float(x);
}
inline uint16_t to_bits(double x, int64_t dtype) {
  x = as(x, dtype);
  if (dtype == BFLOAT16) {
    float wide = float(x);
    uint32_t bits;
    memcpy(&bits, &wide, 4);
    return std::isnan(x) ? 0x7fc0 : bits >> 16;
  }
  uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return 0x7e00;
  if (std::isinf(x)) return sign | 0x7c00;
  double size = std::fabs(x);
  if (size < std::ldexp(1.0, -14)) return sign | uint16_t(size * 16777216.0);
  int exponent;
  std::frexp(size, &exponent);
  return sign | uint16_t((exponent + 14) << 10 | (int(std::ldexp(size, 11 - exponent)) & 1023));
}

inline bool next(Ints& place, const Ints& dims) {
  for (size_t i = dims.size(); i-- > 0;) {
    if (++place[i] < dims[i]) return true;
    place[i] = 0;
  }
  return false;
}
inline int64_t offset(const Ints& place, const Ints& strides) {
  int64_t found = 0;
  for (size_t i = 0; i < place.size(); ++i) found += place[i] * strides[i];
  return found;
}
inline Ints dense(const Ints& dims) {
  Ints found(dims.size());
  int64_t step = 1;
  for (size_t i = dims.size(); i-- > 0; step *= dims[i]) found[i] = step;
  return found;
}
inline Ints broadcast(const Ints& dims) {  // strides of a dense tensor whose axes of one element repeat
  Ints found = dense(dims);
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i] == 1) found[i] = 0;
  return found;
}

inline Numbers load(const Tensor& tensor, const void* at) {
  Numbers found;
  Ints place(tensor.dims.size());
  do {
    auto where = tensor.by_value ? 0 : offset(place, tensor.strides);
    found.push_back(tensor.dtype == FLOAT ? static_cast<const float*>(at)[where]
                                          : from_bits(static_cast<const uint16_t*>(at)[where], tensor.dtype));
  } while (next(place, tensor.dims));
  return found;
}
inline void store(const Tensor& tensor, const Numbers& values, void* at) {
  Ints place(tensor.dims.size());
  size_t i = 0;
  do {
    auto where = offset(place, tensor.strides);
    if (tensor.dtype == FLOAT) static_cast<float*>(at)[where] = float(values[i++]);
    else static_cast<uint16_t*>(at)[where] = to_bits(values[i++], tensor.dtype);
  } while (next(place, tensor.dims));
}

// Calls touch(data, filter, made) with the places of each triple of elements that meet in a convolution.
inline void meet(const Operation& o, const Ints& data, const Ints& filter, const Ints& made,
                 const std::function<void(int64_t, int64_t, int64_t)>& touch) {
  size_t rank = data.size() - 2;
  Ints taps(filter.begin() + 1, filter.end()), x = dense(data), w = dense(filter);
  int64_t per_group = made[1] / (data[1] / filter[1]), at_y = 0;
  Ints at(made.size());
  do {
    Ints tap(taps.size());
    do {
      int64_t at_x = at[0] * x[0] + (at[1] / per_group * filter[1] + tap[0]) * x[1];
      int64_t at_w = at[1] * w[0] + tap[0] * w[1];
      bool inside = true;
      for (size_t i = 0; i < rank; ++i) {
        int64_t place = at[2 + i] * o.strides[i] - o.begin[i] + tap[1 + i] * o.dilations[i];
        inside = inside && place >= 0 && place < data[2 + i];
        at_x += place * x[2 + i], at_w += tap[1 + i] * w[2 + i];
      }
      if (inside) touch(at_x, at_w, at_y);
    } while (next(tap, taps));
    ++at_y;
  } while (next(at, made));
}

inline double function(int64_t mode, double x, double b, const Numbers& numbers) {
  auto number = [&](size_t i, double otherwise) { return i < numbers.size() ? numbers[i] : otherwise; };
  switch (mode) {
    case 0: return x + b;
    case 1: return x * b;
    case 2: return std::isnan(x) || std::isnan(b) ? NAN : std::fmin(x, b);
    case 3: return std::isnan(x) || std::isnan(b) ? NAN : std::fmax(x, b);
    case 4: return std::sqrt(x);
    case 6: return x / b;
    case 9: return x - b;
    case 10: return std::fabs(x);
    case 13: return std::exp(x);
    case 15: return std::log(x);
    case 17: return 1 / std::sqrt(x);
    case 20: return std::erf(x);
    case 21: return x;
    case 100: {
      double low = number(0, 0), high = number(1, INFINITY);
      return x < low ? low + number(2, 0) * (x - low) : x > high ? high : x;
    }
    case 101: return std::tanh(x);
    case 102: return 1 / (1 + std::exp(-x));
    case 103: return x > 0 ? x : number(0, 1) * std::expm1(x);
    case 104: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case 105: return std::log1p(std::exp(-std::fabs(number(0, 1) * x))) / number(0, 1) + std::fmax(x, 0);
    case 106: return x / (1 + std::exp(-number(0, 1) * x));
    case 107: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  return NAN;
}

inline void softmax(Numbers& values, int64_t columns) {
  for (size_t row = 0; row < values.size(); row += columns) {
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < columns; ++i) most = std::fmax(most, values[row + i]);
    for (int64_t i = 0; i < columns; ++i) sum += values[row + i] = std::exp(values[row + i] - most);
    for (int64_t i = 0; i < columns; ++i) values[row + i] /= sum;
  }
}

// The product of the last two axes of a and b; the axes before are broadcast.
inline Numbers matmul(const Ints& a, const Numbers& x, const Ints& b, const Numbers& y, const Ints& made) {
  Numbers found;
  Ints place(made.size()), left = broadcast(a), right = broadcast(b);
  size_t last = made.size() - 1;
  do {
    int64_t at_x = 0, at_y = 0;
    for (size_t i = 0; i + 1 < last; ++i) at_x += place[i] * left[i], at_y += place[i] * right[i];
    double sum = 0;
    for (int64_t k = 0; k < a[last]; ++k)
      sum += x[at_x + place[last - 1] * left[last - 1] + k * left[last]] *
             y[at_y + k * right[last - 1] + place[last] * right[last]];
    found.push_back(sum);
  } while (next(place, made));
  return found;
}

inline Numbers pool(const Operation& o, const Ints& data, const Numbers& x, const Ints& made) {
  Numbers found;
  Ints at(made.size()), steps = dense(data);
  do {
    double sum = 0, most = -INFINITY, inside = 0, all = 0;
    bool odd = false;
    Ints tap(o.window.size());
    do {
      int64_t where = at[0] * steps[0] + at[1] * steps[1];
      bool in = true;
      for (size_t i = 0; i < tap.size(); ++i) {
        int64_t place = at[2 + i] * o.strides[i] - o.begin[i] + tap[i];
        in = in && place >= 0 && place < data[2 + i], where += place * steps[2 + i];
      }
      ++all;
      if (in) ++inside, sum += x[where], most = std::fmax(most, x[where]), odd = odd || std::isnan(x[where]);
    } while (next(tap, o.window));
    found.push_back(o.mode == 3 ? (odd ? NAN : most) : sum / (o.mode == 2 ? all : inside));
  } while (next(at, made));
  return found;
}

inline Numbers norm(const Operation& o, const Ints& dims, const Numbers& x, const Ints& scaled, const Numbers& scale,
                    const Numbers& bias, double epsilon) {
  Ints place(dims.size()), rows = dims, factors = broadcast(scaled);
  for (size_t i = 0; i < dims.size(); ++i)
    if (i && scaled[i] == dims[i]) rows[i] = 1;  // the axes that are normalised over
  Ints row = broadcast(rows);
  Numbers sum(x.size()), square(x.size()), count(x.size()), found;
  size_t i = 0;
  do sum[offset(place, row)] += x[i++], ++count[offset(place, row)];
  while (next(place, dims));
  i = 0;
  do {
    auto at = offset(place, row);
    double mean = o.mode == 0 ? sum[at] / count[at] : 0;
    square[at] += (x[i] - mean) * (x[i] - mean), ++i;
  } while (next(place, dims));
  i = 0;
  do {
    auto at = offset(place, row), by = offset(place, factors);
    double mean = o.mode == 0 ? sum[at] / count[at] : 0;
    found.push_back((x[i++] - mean) / std::sqrt(square[at] / count[at] + epsilon) * scale[by] + (bias.empty() ? 0 : bias[by]));
  } while (next(place, dims));
  return found;
}

// Runs it. ``tensor_cores`` rounds factors to TF32, and ``coarse`` rounds sums to bfloat16.
inline void run(const Program& program, const std::map<int64_t, void*>& places, bool tensor_cores, bool coarse) {
  std::vector<Numbers> values(program.tensors.size());
  std::map<int64_t, bool> made;
  for (auto& o : program.operations) made[o.output] = true;
  for (size_t i = 0; i < values.size(); ++i)
    if (!made[i]) values[i] = load(program.tensors[i], places.at(program.tensors[i].uid));
  for (auto& o : program.operations) {
    auto& target = program.tensors[o.output];
    auto dims = [&](size_t i) -> const Ints& { return program.tensors[o.inputs[i]].dims; };
    auto factor = [&](size_t i) {
      Numbers found = values[o.inputs[i]];
      for (auto& each : found)
        if (tensor_cores) each = rounded(each, 11, -125, 128);
      return found;
    };
    Numbers found;
    if (o.op == CONV || o.op == GRADIENT) {
      Numbers x = factor(0), w = factor(1);
      found.resize(target.size());
      if (o.op == CONV)
        meet(o, dims(0), dims(1), target.dims, [&](int64_t a, int64_t b, int64_t c) { found[c] += x[a] * w[b]; });
      else
        meet(o, target.dims, dims(1), dims(0), [&](int64_t a, int64_t b, int64_t c) { found[a] += x[c] * w[b]; });
    } else if (o.op == POINTWISE) {
      auto& x = values[o.inputs[0]];
      bool two = o.inputs.size() > 1;
      Ints place(target.dims.size()), left = broadcast(dims(0)), right = two ? broadcast(dims(1)) : place;
      do
        found.push_back(function(o.mode, x[offset(place, left)], two ? values[o.inputs[1]][offset(place, right)] : 0, o.numbers));
      while (next(place, target.dims));
    } else if (o.op == MATMUL) {
      found = matmul(dims(0), factor(0), dims(1), factor(1), target.dims);
    } else if (o.op == REDUCE) {
      Ints place(dims(0).size()), to = broadcast(target.dims);
      found.assign(target.size(), o.mode == 3 ? -INFINITY : 0);
      size_t i = 0;
      do {
        double &into = found[offset(place, to)], x = values[o.inputs[0]][i++];
        into = o.mode == 3 ? (std::isnan(x) || std::isnan(into) ? NAN : std::fmax(into, x)) : into + x;
      } while (next(place, dims(0)));
    } else if (o.op == RESAMPLE) {
      found = pool(o, dims(0), values[o.inputs[0]], target.dims);
    } else if (o.op == NORM) {
      bool biased = o.inputs.size() > 3;
      found = norm(o, dims(0), values[o.inputs[0]], dims(1), values[o.inputs[1]],
                   biased ? values[o.inputs[2]] : Numbers(), values[o.inputs.back()][0]);
    } else if (o.op == SOFTMAX) {
      softmax(found = values[o.inputs[0]], dims(0).back());
    } else if (o.op == SDPA) {
      Ints q = dims(0), k = dims(1), scores{q[0], q[1], q[2], k[2]}, kt{k[0], k[1], k[3], k[2]};
      Numbers turned, keys = factor(1);
      Ints place(4), steps = dense(k);
      std::swap(steps[2], steps[3]);
      do turned.push_back(keys[offset(place, steps)]);
      while (next(place, kt));
      Numbers sums = matmul(q, factor(0), kt, turned, scores);
      for (auto& each : sums) each *= values[o.inputs[3]][0];
      softmax(sums, k[2]);
      found = matmul(scores, sums, dims(2), factor(2), target.dims);
    }
    for (auto& each : found) each = as(coarse ? as(each, BFLOAT16) : each, target.dtype);
    values[o.output] = found;
  }
  for (size_t i = 0; i < values.size(); ++i)
    if (made[i] && !program.tensors[i].is_virtual) store(program.tensors[i], values[i], places.at(program.tensors[i].uid));
}

}  // namespace program
