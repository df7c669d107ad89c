// A stand-in for cuDNN (libcudnn.so.9): the graph interface. Descriptors are checked as they are set and finalised, the
// heuristic offers engines with notes and knobs, plans are made, written and read, and what they run is computed by its
// definition (cudnn_program.h), enqueued on the streams of the stand-in for the driver.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

#include "cudnn_program.h"
#include "cudnn_rules.h"

namespace {

using program::Ints;
using program::Operation;
using program::Program;

enum Status { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };
thread_local std::string message;
int fail(int status, const std::string& why) { return message = why, status; }

struct Attribute {
  int64_t count = 0;
  std::vector<char> bytes;
};
// An engine of the stand-in, with one knob.
struct Engine {
  int64_t number = 0, knob = 0;
};
struct Descriptor {
  int kind = 0;
  bool final = false;
  std::map<int, Attribute> set;
  std::shared_ptr<Program> program;  // of an operation graph, and of what is made of it
  Engine engine;
  std::vector<Engine> offered;
};
struct Handle {
  void* stream = nullptr;
};

using Enqueue = void (*)(void*, const char*, std::function<void()>*);
void enqueue(void* handle, const char* label, std::function<void()> run) {
  static auto found = reinterpret_cast<Enqueue>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "collage_standin_enqueue"));
  found(static_cast<Handle*>(handle)->stream, label, &run);
}

int64_t version() {
  const char* found = getenv("COLLAGE_STANDIN_CUDNN");
  return found ? atoll(found) : 91002;
}
bool has(const Descriptor& from, int name) { return from.set.count(name); }
template <class T> std::vector<T> all(const Descriptor& from, int name) {
  std::vector<T> found;
  auto at = from.set.find(name);
  if (at == from.set.end()) return found;
  found.resize(at->second.bytes.size() / sizeof(T));
  memcpy(found.data(), at->second.bytes.data(), found.size() * sizeof(T));
  return found;
}
template <class T> T one(const Descriptor& from, int name, T otherwise = T()) {
  auto found = all<T>(from, name);
  return found.empty() ? otherwise : found[0];
}
Descriptor* link(const Descriptor& from, int name) { return one<Descriptor*>(from, name); }

// Notes: 0 tensor cores, 2 sums in fewer bits, 3 Fourier transforms. Engine 5 cannot be finalised.
std::vector<int> notes(int64_t engine) {
  if (engine == 0) return {0};
  if (engine == 2) return {3};
  return engine == 3 ? std::vector<int>{0, 2} : std::vector<int>{};
}
size_t workspace(const Engine& engine) { return engine.number == 4 ? 0 : 512 * (1 + engine.number); }

bool multiplies(const Program& found) {
  return std::any_of(found.operations.begin(), found.operations.end(), [](const Operation& o) {
    return o.op == program::CONV || o.op == program::GRADIENT || o.op == program::MATMUL || o.op == program::SDPA;
  });
}
std::vector<Engine> offers(const Program& found, int mode) {
  if (mode == 2) return {{4, 0}};
  if (!multiplies(found)) return mode == 3 ? std::vector<Engine>{{5, 0}, {1, 1}} : std::vector<Engine>{{1, 1}, {1, 2}};
  if (mode == 3) return {{0, 0}, {5, 0}, {1, 1}, {2, 0}, {3, 0}};
  return {{1, 1}, {1, 2}};
}
// As the real one has no attention in float32, and no longer runs engines for other dtypes.
bool supported(const Program& found) {
  bool attention = false, halves = false, products = false;
  for (auto& o : found.operations) attention = attention || o.op == program::SDPA, products = products || o.op == program::MATMUL;
  for (auto& t : found.tensors) halves = halves || t.dtype != program::FLOAT;
  return halves || !(attention || products);
}

int check_tensor(const Descriptor& d) {
  auto dims = all<int64_t>(d, 902), strides = all<int64_t>(d, 903);
  auto type = one<int>(d, 901), alignment = int(one<int64_t>(d, 900));
  if (dims.size() != strides.size() || dims.size() > 8) return fail(BAD_PARAM, "a tensor's dimensions and strides differ");
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i] < 1 || strides[i] < 0) return fail(BAD_PARAM, "a tensor's dimensions are not positive");
  if (type != 0 && type != 2 && type != 9) return fail(NOT_SUPPORTED, "a tensor's data type");
  if (alignment < 1 || (alignment & (alignment - 1))) return fail(BAD_PARAM, "a tensor's alignment is no power of two");
  bool scalar = std::all_of(dims.begin(), dims.end(), [](int64_t each) { return each == 1; });
  if (one<char>(d, 908) && (one<char>(d, 907) || !scalar)) return fail(BAD_PARAM, "a tensor by value is virtual, or no scalar");
  return SUCCESS;
}

Ints whole(const Descriptor& d, int name) {  // fractions that are whole numbers
  Ints found, raw = all<int64_t>(d, name);
  for (size_t i = 0; i + 1 < raw.size(); i += 2) found.push_back(raw[i + 1] == 1 ? raw[i] : -1);
  return found;
}

// The operation that a descriptor describes, with the tensors that it reads and the one that it makes.
bool read(const Descriptor& d, Operation& o, std::vector<Descriptor*>& reads, Descriptor*& makes) {
  o.op = d.kind;
  auto take = [&](std::initializer_list<int> names) {
    for (int name : names)
      if (has(d, name)) reads.push_back(link(d, name));
  };
  auto numbers = [&](const Descriptor& from, std::initializer_list<int> names) {
    for (int name : names)
      if (has(from, name)) o.numbers.push_back(one<double>(from, name));
  };
  switch (d.kind) {
    case 10: case 12: {
      auto& about = *link(d, d.kind == 10 ? 702 : 708);
      o.begin = all<int64_t>(about, 105), o.end = all<int64_t>(about, 104);
      o.strides = all<int64_t>(about, 103), o.dilations = all<int64_t>(about, 102);
      if (d.kind == 10) take({704, 703}), makes = link(d, 705);
      else take({711, 709}), makes = link(d, 710);
      return one<float>(d, d.kind == 10 ? 700 : 706) == 1 && one<float>(d, d.kind == 10 ? 701 : 707) == 0;
    }
    case 13: {
      auto& about = *link(d, 750);
      o.mode = one<int>(about, 0);
      numbers(about, {3, 4, 5, 6, 7, 8});
      take({751, 752}), makes = link(d, 753);
      return (o.mode < 10 && o.mode != 4) == (reads.size() == 2);
    }
    case 19: return take({1520, 1521}), makes = link(d, 1522), true;
    case 22: return o.mode = one<int>(*link(d, 1612), 1600), take({1610}), makes = link(d, 1611), true;
    case 25: {
      auto& about = *link(d, 1716);
      o.mode = one<int>(about, 1700);
      o.begin = whole(about, 1704), o.end = whole(about, 1703), o.strides = whole(about, 1705), o.window = whole(about, 1706);
      o.dilations.assign(o.strides.size(), 1);
      take({1710}), makes = link(d, 1711);
      return one<double>(d, 1713) == 1 && one<double>(d, 1714) == 0 && one<int>(about, 1708) == (o.mode == 3 ? 1 : 0) &&
             one<int>(about, 1707) == 1;
    }
    case 29:
      o.mode = one<int>(d, 2000);
      take({2002, 2005, 2006, 2007}), makes = link(d, 2013);
      return one<int>(d, 2001) == 0 && (o.mode == 0 || o.mode == 4) && has(d, 2006) == (o.mode == 0);
    case 41: return take({2800, 2801, 2802, 2805}), makes = link(d, 2803), version() >= 91300;
    case 45: return take({3100}), makes = link(d, 3101), version() >= 92000;
  }
  return false;
}

bool slides(const Operation& o, const Ints& data, const Ints& kernel, const Ints& made) {
  size_t rank = data.size() - 2;
  for (auto* each : {&o.begin, &o.end, &o.strides, &o.dilations, &kernel})
    if (each->size() != rank || made.size() != data.size()) return false;
  for (size_t i = 0; i < rank; ++i) {
    int64_t span = data[2 + i] + o.begin[i] + o.end[i] - (kernel[i] - 1) * o.dilations[i] - 1;
    if (o.begin[i] < 0 || o.end[i] < 0 || o.strides[i] < 1 || span < 0 || span / o.strides[i] + 1 != made[2 + i]) return false;
  }
  return data[0] == made[0];
}
bool broadcasts(const Ints& from, const Ints& to) {
  if (from.size() != to.size()) return false;
  for (size_t i = 0; i < to.size(); ++i)
    if (from[i] != to[i] && from[i] != 1) return false;
  return true;
}

bool fits(const Operation& o, const std::vector<Ints>& in, const Ints& made) {
  switch (o.op) {
    case 10: case 12: {
      auto &data = o.op == 10 ? in[0] : made, &result = o.op == 10 ? made : in[0], &w = in[1];
      if (data.size() < 4 || w.size() != data.size() || data[1] % w[1] || result[1] != w[0] || w[0] % (data[1] / w[1])) return false;
      return slides(o, data, Ints(w.begin() + 2, w.end()), result);
    }
    case 13: return in[0] == made && (in.size() < 2 || broadcasts(in[1], made));
    case 19: {
      size_t last = made.size() - 1;
      return in[0].size() == made.size() && in[1].size() == made.size() && in[0][last] == in[1][last - 1] &&
             in[0][last - 1] == made[last - 1] && in[1][last] == made[last];
    }
    case 22: return broadcasts(made, in[0]);
    case 25: return in[0].size() >= 4 && in[0][1] == made[1] && slides(o, in[0], o.window, made);
    case 29: return in[0] == made && in[0].size() >= 4 && in[1][0] == 1 && broadcasts(in[1], made) && (o.mode || in[1] == in[2]);
    case 41: return in[0].size() == 4 && in[1][3] == in[0][3] && in[2][2] == in[1][2] && made[3] == in[2][3] && made[2] == in[0][2];
    case 45: return in[0] == made;
  }
  return false;
}

int build(Descriptor& graph) {
  auto found = std::make_shared<Program>();
  std::map<int64_t, int64_t> position;  // by unique number
  std::set<int64_t> made, used;
  auto place = [&](const Descriptor& t) {
    program::Tensor tensor;
    tensor.uid = one<int64_t>(t, 906), tensor.dtype = one<int>(t, 901);
    tensor.dims = all<int64_t>(t, 902), tensor.strides = all<int64_t>(t, 903);
    tensor.is_virtual = one<char>(t, 907), tensor.by_value = one<char>(t, 908);
    if (!position.count(tensor.uid)) position[tensor.uid] = found->tensors.size(), found->tensors.push_back(tensor);
    return position[tensor.uid];
  };
  for (auto* each : all<Descriptor*>(graph, 801)) {
    Operation o;
    std::vector<Descriptor*> reads;
    Descriptor* makes = nullptr;
    if (!each->final) return fail(BAD_PARAM, "an operation is not finalised");
    if (!read(*each, o, reads, makes)) return fail(NOT_SUPPORTED, "operation " + std::to_string(each->kind));
    std::vector<Ints> dims;
    for (auto* tensor : reads) {
      o.inputs.push_back(place(*tensor));
      dims.push_back(found->tensors[o.inputs.back()].dims);
      used.insert(o.inputs.back());
      if (found->tensors[o.inputs.back()].is_virtual && !made.count(o.inputs.back()))
        return fail(BAD_PARAM, "a virtual tensor is read before it is made");
    }
    o.output = place(*makes);
    if (!made.insert(o.output).second) return fail(BAD_PARAM, "a tensor is made twice");
    if (!fits(o, dims, found->tensors[o.output].dims)) return fail(BAD_PARAM, "shapes of operation " + std::to_string(o.op));
    found->operations.push_back(o);
  }
  for (auto at : made)
    if (found->tensors[at].is_virtual && !used.count(at)) return fail(BAD_PARAM, "a virtual tensor that nobody reads");
  graph.program = found;
  return SUCCESS;
}

int finalise_plan(Descriptor& d) {
  if (has(d, 401) == has(d, 405)) return fail(BAD_PARAM, "a plan is of a configuration, or of JSON");
  if (has(d, 401)) {
    auto& configuration = *link(d, 401);
    if (configuration.engine.number == 5) return fail(NOT_SUPPORTED, "engine 5 does not fit after all");
    d.program = configuration.program, d.engine = configuration.engine;
    return SUCCESS;
  }
  auto bytes = all<char>(d, 405);
  std::istringstream in(std::string(bytes.begin(), bytes.end()));
  std::string name;
  in >> name >> d.engine.number >> d.engine.knob;
  if (name != "collage-standin-plan") return fail(BAD_PARAM, "JSON of another version");
  d.program = std::make_shared<Program>(program::parse(in));
  return SUCCESS;
}

int give(int type, const void* data, int64_t count, int64_t most, int64_t* found, void* room) {
  *found = count;
  if (room) memcpy(room, data, std::min(count, most) * rules::size_of(type));
  return SUCCESS;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API size_t cudnnGetVersion() { return version(); }
API void cudnnGetLastErrorString(char* text, size_t most) { snprintf(text, most, "%s", message.c_str()), message.clear(); }
API int cudnnCreate(void** handle) { return *handle = new Handle, SUCCESS; }
API int cudnnSetStream(void* handle, void* stream) { return static_cast<Handle*>(handle)->stream = stream, SUCCESS; }

API int cudnnBackendCreateDescriptor(int kind, void** made) {
  if (!rules::all().count(kind)) return fail(NOT_SUPPORTED, "descriptor " + std::to_string(kind));
  auto found = new Descriptor;
  found->kind = kind;
  return *made = found, SUCCESS;
}
API int cudnnBackendDestroyDescriptor(void* made) { return delete static_cast<Descriptor*>(made), SUCCESS; }

API int cudnnBackendSetAttribute(void* at, int name, int type, int64_t count, const void* values) {
  auto& d = *static_cast<Descriptor*>(at);
  auto& table = rules::all().at(d.kind);
  auto rule = table.find(name);
  std::string about = "attribute " + std::to_string(name) + " of descriptor " + std::to_string(d.kind);
  if (d.final) return fail(BAD_PARAM, about + ": it is finalised");
  if (rule == table.end() || rule->second.type != type) return fail(BAD_PARAM, about + ": type " + std::to_string(type));
  if (count < 1 || (count > 1 && !rule->second.many)) return fail(BAD_PARAM, about + ": count " + std::to_string(count));
  if (type == rules::DESCRIPTOR)
    for (int64_t i = 0; i < count; ++i)
      if (!static_cast<Descriptor* const*>(values)[i]->final) return fail(BAD_PARAM, about + ": not finalised");
  auto bytes = static_cast<const char*>(values);
  d.set[name] = {count, {bytes, bytes + count * rules::size_of(type)}};
  return SUCCESS;
}

API int cudnnBackendFinalize(void* at) {
  auto& d = *static_cast<Descriptor*>(at);
  for (auto& [name, rule] : rules::all().at(d.kind))
    if (rule.required && !has(d, name))
      return fail(BAD_PARAM, "attribute " + std::to_string(name) + " of descriptor " + std::to_string(d.kind) + " is missing");
  int status = SUCCESS;
  if (d.kind == 17) status = check_tensor(d);
  if (d.kind == 1 && (one<int>(d, 100) != 0 || one<int>(d, 101) != 1)) status = fail(NOT_SUPPORTED, "a convolution's mode");
  if (d.kind == 15) status = build(d);
  if (d.kind == 4) {
    auto& graph = *link(d, 201)->program;
    if (!supported(graph)) status = fail(NOT_SUPPORTED, "no engine for these data types");
    d.program = link(d, 201)->program;
    d.offered = offers(graph, one<int>(d, 200));
  }
  if (d.kind == 5) status = finalise_plan(d);
  if (d.kind == 16 && all<int64_t>(d, 1000).size() != all<void*>(d, 1001).size())
    status = fail(BAD_PARAM, "a variant pack with more numbers or pointers");
  d.final = status == SUCCESS;
  return status;
}

API int cudnnBackendGetAttribute(void* at, int name, int type, int64_t most, int64_t* count, void* room) {
  auto& d = *static_cast<Descriptor*>(at);
  if (!d.final) return fail(BAD_PARAM, "attribute " + std::to_string(name) + " of what is not finalised");
  auto fill = [&](size_t i, int kind, Engine engine) {
    auto& into = *static_cast<Descriptor**>(room)[i];
    if (into.kind != kind) return false;
    into.final = true, into.program = d.program, into.engine = engine;
    return true;
  };
  if (d.kind == 4 && name == 202 && type == rules::DESCRIPTOR) {
    *count = d.offered.size();
    for (size_t i = 0; room && i < std::min<size_t>(most, *count); ++i)
      if (!fill(i, 3, d.offered[i])) return fail(BAD_PARAM, "results are configurations");
    return SUCCESS;
  }
  if (d.kind == 3 && name == 300 && type == rules::DESCRIPTOR && most == 1)
    return *count = 1, fill(0, 2, d.engine) ? SUCCESS : fail(BAD_PARAM, "no engine");
  if (d.kind == 3 && name == 302 && type == rules::DESCRIPTOR) {
    *count = d.engine.knob ? 1 : 0;
    return !*count || most < 1 || fill(0, 7, d.engine) ? SUCCESS : fail(BAD_PARAM, "no knob");
  }
  int tile = 2;
  if (d.kind == 7 && name == 600) return give(type, &tile, 1, most, count, room);
  if (d.kind == 7 && name == 601) return give(type, &d.engine.knob, 1, most, count, room);
  if (d.kind == 2 && name == 1301) return give(type, &d.engine.number, 1, most, count, room);
  if (d.kind == 2 && name == 1303) {
    auto found = notes(d.engine.number);
    return give(type, found.data(), found.size(), most, count, room);
  }
  if (d.kind == 38 && name == 2702) return give(type, "{}", 2, most, count, room);
  if (d.kind == 5 && name == 402) {
    int64_t room_bytes = workspace(d.engine);
    return give(type, &room_bytes, 1, most, count, room);
  }
  if (d.kind == 5 && name == 405) {
    auto found = "collage-standin-plan " + std::to_string(d.engine.number) + " " + std::to_string(d.engine.knob) + " " +
                 program::text(*d.program);
    return give(type, found.data(), found.size(), most, count, room);
  }
  return fail(BAD_PARAM, "attribute " + std::to_string(name) + " of descriptor " + std::to_string(d.kind));
}

API int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  auto &p = *static_cast<Descriptor*>(plan), &v = *static_cast<Descriptor*>(pack);
  if (p.kind != 5 || v.kind != 16 || !p.final || !v.final) return fail(BAD_PARAM, "no plan, or no variant pack");
  auto numbers = all<int64_t>(v, 1000);
  auto pointers = all<void*>(v, 1001);
  std::map<int64_t, void*> places;
  for (size_t i = 0; i < numbers.size(); ++i) places[numbers[i]] = pointers[i];
  for (auto& tensor : p.program->tensors)
    if (!tensor.is_virtual && !places.count(tensor.uid)) return fail(BAD_PARAM, "a tensor has no pointer");
  auto engine = p.engine;
  auto found = p.program;
  auto space = one<void*>(v, 1003);
  bool wide = std::all_of(found->tensors.begin(), found->tensors.end(), [](auto& each) { return each.dtype == program::FLOAT; });
  std::vector<std::pair<int64_t, float>> scalars;  // by value, and so read now
  for (auto& tensor : found->tensors)
    if (tensor.by_value) scalars.push_back({tensor.uid, *static_cast<float*>(places[tensor.uid])});
  enqueue(handle, "graph of cuDNN", [=] {
    if (workspace(engine)) memset(space, 0xFF, workspace(engine));
    auto at = places;
    auto kept = scalars;
    for (auto& each : kept) at[each.first] = &each.second;
    program::run(*found, at, wide && engine.number == 0, engine.number == 3);
  });
  return SUCCESS;
}
