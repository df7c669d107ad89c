#include "pipeline.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using Set = unsigned __int128;
using Row = std::unique_ptr<int32_t[]>;

using Degrees = uint32_t;

constexpr Degrees kUnknown = ~0u;

constexpr int32_t kNever = INT32_MAX;  // no plan
constexpr int32_t kMostBatches = 4;    // more in-flight samples are not told apart
enum Extra { kWeights, kState, kActivations, kCutBytes, kCuts, kUpdate, kExtras };

struct Late {};

// The processor time that a search may take, and a flag that ends it.
class Clock {
 public:
  Clock(double seconds, const int32_t &stop) : seconds_(seconds), stop_(stop), start_(std::clock()) {}
  void tick() {
    if (++ticks_ % 16 != 0) return;
    if (__atomic_load_n(&stop_, __ATOMIC_RELAXED) || double(std::clock() - start_) / CLOCKS_PER_SEC > seconds_) throw Late();
  }

 private:
  double seconds_;
  const int32_t &stop_;
  int64_t ticks_ = 0;
  std::clock_t start_;
};

// What both searches share: costs of a stage, in-flight samples, and rows of the memo tables.
class Search {
 public:
  Search(const collage_pipe_costs &costs, double t_max, double seconds)
      : clock(seconds, costs.stop), c(costs), t_max_(t_max) {
    for (int32_t x = 0; x < c.configs; ++x) log_b_.push_back(__builtin_ctz(c.b[x]));
  }

  // A stage never has more than a mini-batch in flight. Larger numbers are kept here, since depths differ by them.
  // In-flight samples of configuration x before a stage of configuration y with i of them, by Table 3.2; y may be none.
  int32_t needed(int32_t x, int32_t y, int32_t i) const {
    const int32_t b = c.b[x], mine = b * c.k[x];
    if (y == c.configs) return mine;
    const int32_t its_b = c.b[y], its = its_b * c.k[y], larger = std::max(b, its_b);
    int32_t more;
    if (mine < its) {
      more = mine < its_b ? its_b : mine == larger ? larger : 2 * larger;
    } else if (mine == its) {
      more = its == larger ? its : 2 * larger;
    } else if (its < b) {
      more = mine - its + b;
    } else {
      more = its == larger ? mine : mine - its + 2 * larger;
    }
    return std::min((i + more + b - 1) / b * b, kMostBatches * c.mini_batch);
  }

  // Whether a stage meets the time, and has memory for the fewest in-flight samples, with configuration x and degree g.
  bool usable(const double *sums, int32_t x, int32_t g) const {
    const int32_t share = log_b_[x] - g;
    if (share < 0 || share >= c.tables) return false;
    const double *extra = sums + c.tables;
    const double b = c.b[x], devices = 1 << g, steps = 2 * (devices - 1);
    const double messages = extra[kCuts] * c.latency + extra[kCutBytes] * (1 << share) / c.bandwidth;
    const double once =
        steps * (c.ring_latency[g] + extra[kWeights] / devices / c.ring_bandwidth[g]) + extra[kUpdate];
    return (sums[share] + messages) / b + once / c.mini_batch <= t_max_ &&
           extra[kState] + extra[kActivations] * (c.b[x] * c.k[x]) / devices <= c.memory;
  }

  // The usable degrees, a bit each.
  Degrees usable_degrees(const double *sums, int32_t x) const {
    Degrees found = 0;
    for (int32_t g = 0; g < c.degrees; ++g)
      if (usable(sums, x, g)) found |= 1u << g;
    return found;
  }

  // Those of the degrees with memory for so many in-flight samples.
  Degrees fitting(Degrees degrees, double state, double activations, int32_t in_flight) const {
    for (int32_t g = 0; degrees >> g; ++g)
      if (state + activations * std::min(in_flight, c.mini_batch) / (1 << g) > c.memory) degrees &= ~(1u << g);
    return degrees;
  }

  Row row(int32_t width) const {
    const size_t size = size_t(c.devices + 1) * width;
    Row found(new int32_t[size]);
    std::fill_n(found.get(), size, kNever);
    return found;
  }

  // Take what `from` has for d devices into `to` for d + g of them, but not below `least`.
  void take(int32_t *to, const int32_t *from, int32_t devices, int32_t width, int32_t least = 0) const {
    const int32_t count = (c.devices + 1 - devices) * width;
    to += devices * width;
    for (int32_t at = 0; at < count; ++at) to[at] = std::min(to[at], std::max(from[at], least));
  }

  Clock clock;
  const collage_pipe_costs &c;

 private:
  double t_max_;
  std::vector<int32_t> log_b_;
};

// Algorithm 2 on a series-parallel tree. The row of a state has, for each number of devices d and each configuration x of
// the stage before, the fewest in-flight samples of that stage with a plan of the state's part on at most d devices. In
// front of the root is no stage: there the first configuration stands for all.
class Tree : Search {
 public:
  Tree(const collage_pipe_costs &costs, const collage_pipe_tree &tree, double t_max, double seconds)
      : Search(costs, t_max, seconds), t(tree), all_(costs.configs), usable_(size_t(tree.rows) * all_, kUnknown) {}

  int32_t plan(collage_pipe_stage *stages, int32_t most, int64_t *states) {
    const int32_t least = series(t.root, units(t.root), -1, all_, 0)[c.devices];
    found_ = stages, most_ = most, count_ = 0;
    if (least != kNever) trace_series(t.root, units(t.root), -1, all_, 0, c.devices, 0, least);
    *states = memo_.size();
    return count_;
  }

 private:
  int32_t units(int32_t s) const { return t.s_first[s + 1] - t.s_first[s]; }
  int32_t width(int32_t s) const { return s == t.root ? 1 : all_; }
  int32_t unit(int32_t s, int32_t u) const { return t.unit[t.s_first[s] + u]; }
  int32_t first(int32_t s, int32_t u) const { return t.v_first[t.s_first[s] + u]; }
  int32_t stage(int32_t s, int32_t r, int32_t p) const { return t.row[t.s_rows[s] + r * units(s) + p - 1]; }
  int32_t beside(int32_t v, int32_t p) const { return t.row[t.v_rows[v] + p]; }
  const double *sums(int32_t row) const { return t.sums + size_t(row) * (c.tables + kExtras); }

  uint64_t key(int32_t kind, int32_t part, int32_t at, int32_t y, int32_t i) const {
    const uint64_t where = ((uint64_t(part) * 4096 + at) * 3 + kind) * (c.configs + 1) + y;
    return where * (kMostBatches * int64_t(c.mini_batch) + 1) + i;
  }

  Degrees fitting_row(int32_t row, int32_t x, int32_t in_flight) {
    Degrees &degrees = usable_[size_t(row) * all_ + x];
    if (degrees == kUnknown) degrees = usable_degrees(sums(row), x);
    const double *extra = sums(row) + c.tables;
    return degrees ? fitting(degrees, extra[kState], extra[kActivations], in_flight) : 0;
  }

  // The ways to make the row one stage before the stage (y, i): visit(x, degrees, in-flight).
  template <typename Visit>
  void each_stage(int32_t row, int32_t y, int32_t i, Visit visit) {
    if (row < 0) return;
    for (int32_t x = 0; x < c.configs; ++x) {
      const int32_t in_flight = needed(x, y, i);
      if (const Degrees degrees = fitting_row(row, x, in_flight)) visit(x, degrees, in_flight);
    }
  }

  // The last stages of the units before p of a series, each with what is left: visit(row, in the actual series its row,
  // start, variant that is left at the start or -1, x, degrees, in-flight).
  template <typename Visit>
  void each_last(int32_t s, int32_t actual, int32_t p, int32_t y, int32_t i, Visit visit) {
    for (int32_t r = p - 1; r >= 0; --r) {
      each_stage(stage(s, r, p), y, i, [&](int32_t x, Degrees degrees, int32_t in_flight) {
        visit(stage(actual, r, p), r, -1, x, degrees, in_flight);
      });
      if (r == 0 || unit(s, r - 1) < 0) continue;
      const int32_t shift = first(actual, r - 1) - first(s, r - 1);
      for (int32_t v = first(s, r - 1); v < first(s, r); ++v)
        if (t.v_after[v])
          each_stage(beside(v, p), y, i, [&](int32_t x, Degrees degrees, int32_t in_flight) {
            visit(beside(v + shift, p), r, v, x, degrees, in_flight);
          });
    }
  }

  // The stages right before the parallel at the unit u of a series, or before a variant: visit(the parallel's place, the
  // actual one, row, start, the parallel's devices, x, degrees, in-flight).
  template <typename Visit>
  void each_before(int32_t s, int32_t actual, int32_t u, int32_t variant, int32_t y, int32_t i, Visit visit) {
    const int32_t shift = first(actual, u) - first(s, u);
    const auto before = [&](int32_t place, int32_t actual_place, auto row_from) {
      const int32_t *inner = parallel(place, y, i);
      for (int32_t d = 0; d < c.devices; ++d)
        for (int32_t x = 0; x < all_; ++x) {
          const int32_t in_flight = inner[d * all_ + x];
          if (in_flight == kNever || (d && in_flight == inner[(d - 1) * all_ + x])) continue;
          for (int32_t r = u - 1; r >= 0; --r) {
            const std::pair<int32_t, int32_t> rows = row_from(r);
            if (const Degrees degrees = fitting_row(rows.first, x, in_flight))
              visit(place, actual_place, rows.second, r, d, x, degrees, in_flight);
          }
        }
    };
    const auto plain = [&](int32_t r) { return std::make_pair(stage(s, r, u), stage(actual, r, u)); };
    if (variant >= 0) return before(t.v_place[variant], t.v_place[variant + shift], plain);
    before(unit(s, u), unit(actual, u), plain);
    for (int32_t v = first(s, u); v < first(s, u + 1); ++v)
      if (!t.v_after[v])
        before(t.v_place[v], t.v_place[v + shift],
               [&](int32_t r) { return std::make_pair(beside(v, r), beside(v + shift, r)); });
  }

  // The units before p of a series, with the stage (y, i) after them. With a variant the last one is that.
  const int32_t *series(int32_t s, int32_t p, int32_t variant, int32_t y, int32_t i) {
    s = t.s_same[s];
    const uint64_t mine = variant < 0 ? key(0, s, p, y, i) : key(1, variant, 0, y, i);
    auto [at, is_new] = memo_.try_emplace(mine);
    if (!is_new) return at->second.get();
    clock.tick();
    const int32_t wide = width(s);
    Row best = row(wide);
    int32_t *to = best.get();
    const auto add = [&](const int32_t *rest, int32_t d, Degrees degrees) {
      for (int32_t g = 0; degrees >> g && d + (1 << g) <= c.devices; ++g)
        if (degrees >> g & 1) take(to, rest, d + (1 << g), wide);
    };
    if (p == 0)
      for (int32_t d = 0; d <= c.devices; ++d)
        for (int32_t x = 0; x < wide; ++x) to[d * wide + x] = needed(x, y, i);
    if (variant < 0)
      each_last(s, s, p, y, i, [&](int32_t, int32_t r, int32_t v, int32_t x, Degrees degrees, int32_t in_flight) {
        add(series(s, r, v, x, in_flight), 0, degrees);
      });
    const int32_t place = p == 0 ? -1 : variant < 0 ? unit(s, p - 1) : t.v_place[variant];
    if (place >= 0 && p == 1) {
      const int32_t *inner = parallel(place, y, i);
      for (int32_t d = 0; d <= c.devices; ++d)
        for (int32_t x = 0; x < wide; ++x) to[d * wide + x] = std::min(to[d * wide + x], inner[d * all_ + x]);
    } else if (place >= 0) {
      each_before(s, s, p - 1, variant, y, i,
                  [&](int32_t, int32_t, int32_t, int32_t r, int32_t d, int32_t x, Degrees degrees, int32_t in_flight) {
                    add(series(s, r, -1, x, in_flight), d, degrees);
                  });
    }
    return (memo_[mine] = std::move(best)).get();
  }

  // The children of a parallel from a place on.
  const int32_t *parallel(int32_t place, int32_t y, int32_t i) {
    place = t.p_same[place];
    const uint64_t mine = key(2, place, 0, y, i);
    auto [at, is_new] = memo_.try_emplace(mine);
    if (!is_new) return at->second.get();
    clock.tick();
    Row best = row(all_);
    int32_t *to = best.get();
    const int32_t child = t.child[place];
    if (child < 0) {
      std::fill_n(to, (c.devices + 1) * all_, 0);
    } else {
      const int32_t *alone = series(child, t.child_end[place], -1, y, i), *rest = parallel(place + 1, y, i);
      const std::vector<int32_t> steps = better(rest);
      for (int32_t d : better(alone))
        for (int32_t e : steps)
          if (d + e <= c.devices) join(to + (d + e) * all_, alone + d * all_, rest + e * all_);
      std::vector<int32_t> head(all_);
      for (int32_t n = 2; t.child[place + n - 1] >= 0; ++n)
        each_stage(t.row[t.p_runs[place] + n], y, i, [&](int32_t x, Degrees degrees, int32_t in_flight) {
          const int32_t *after = parallel(place + n, y, i);
          for (int32_t f = 0; f < all_; ++f) head[f] = needed(f, x, in_flight);
          for (int32_t e : better(after))
            for (int32_t g = 0; degrees >> g && (1 << g) + e <= c.devices; ++g)
              if (degrees >> g & 1) join(to + ((1 << g) + e) * all_, head.data(), after + e * all_);
        });
      for (int32_t at = all_; at < (c.devices + 1) * all_; ++at) to[at] = std::min(to[at], to[at - all_]);
    }
    return (memo_[mine] = std::move(best)).get();
  }

  // The numbers of devices with which a row of a parallel's state has smaller values than with fewer.
  std::vector<int32_t> better(const int32_t *row) const {
    std::vector<int32_t> found;
    for (int32_t d = 0; d <= c.devices; ++d, row += all_)
      if (d == 0 ? std::any_of(row, row + all_, [](int32_t each) { return each != kNever; })
                 : !std::equal(row, row + all_, row - all_))
        found.push_back(d);
    return found;
  }

  // Take the larger values of two parts side by side.
  void join(int32_t *to, const int32_t *one, const int32_t *other) const {
    for (int32_t x = 0; x < all_; ++x) to[x] = std::min(to[x], std::max(one[x], other[x]));
  }

  void emit(int32_t row, int32_t x, int32_t g, int32_t in_flight) {
    if (count_ < most_) found_[count_] = {row, 0, 0, x, g, in_flight};
    ++count_;
  }

  // The stages of a state's plan that has the value `wanted` for d devices and the configuration f before. What is looked
  // up is of equal parts, and what is emitted of the actual ones.
  void trace_series(int32_t actual, int32_t p, int32_t variant, int32_t y, int32_t i, int32_t d, int32_t f,
                    int32_t wanted) {
    if (p == 0) return;
    bool done = false;
    const int32_t s = t.s_same[actual], wide = width(s);
    const auto ends = [&](int32_t r, int32_t v, int32_t row, int32_t x, Degrees degrees, int32_t in_flight,
                          int32_t devices) {
      for (int32_t g = 0; !done && degrees >> g; ++g) {
        const int32_t left = devices - (1 << g);
        if (!(degrees >> g & 1) || left < 0 || series(s, r, v, x, in_flight)[left * wide + f] != wanted) continue;
        done = true;
        emit(row, x, g, in_flight);
        trace_series(actual, r, v, x, in_flight, left, f, wanted);
        return true;
      }
      return false;
    };
    if (variant < 0)
      each_last(s, actual, p, y, i,
                [&](int32_t row, int32_t r, int32_t v, int32_t x, Degrees degrees, int32_t in_flight) {
                  ends(r, v, row, x, degrees, in_flight, d);
                });
    const int32_t shift = first(actual, p - 1) - first(s, p - 1);
    const int32_t place = variant < 0 ? unit(actual, p - 1) : t.v_place[variant + shift];
    if (done || place < 0) return;
    if (p == 1) return trace_parallel(place, y, i, d, f, wanted);
    each_before(s, actual, p - 1, variant, y, i,
                [&](int32_t, int32_t its_place, int32_t row, int32_t r, int32_t e, int32_t x, Degrees degrees,
                    int32_t in_flight) {
                  if (ends(r, -1, row, x, degrees, in_flight, d - e)) trace_parallel(its_place, y, i, e, x, in_flight);
                });
  }

  void trace_parallel(int32_t place, int32_t y, int32_t i, int32_t d, int32_t f, int32_t wanted) {
    const int32_t child = t.child[place];
    if (child < 0) return;
    const int32_t *alone = series(child, t.child_end[place], -1, y, i), *rest = parallel(place + 1, y, i);
    for (int32_t e = 0; e <= d; ++e)
      if (alone[e * all_ + f] <= wanted && rest[(d - e) * all_ + f] <= wanted) {
        trace_series(child, t.child_end[place], -1, y, i, e, f, alone[e * all_ + f]);
        return trace_parallel(place + 1, y, i, d - e, f, rest[(d - e) * all_ + f]);
      }
    bool done = false;
    for (int32_t n = 2; t.child[place + n - 1] >= 0; ++n)
      each_stage(t.row[t.p_runs[t.p_same[place]] + n], y, i, [&](int32_t x, Degrees degrees, int32_t in_flight) {
        for (int32_t g = 0; !done && degrees >> g; ++g) {
          const int32_t left = d - (1 << g);
          if (!(degrees >> g & 1) || left < 0 || needed(f, x, in_flight) > wanted) continue;
          const int32_t other = parallel(place + n, y, i)[left * all_ + f];
          if (other > wanted) continue;
          done = true;
          emit(t.row[t.p_runs[place] + n], x, g, in_flight);
          trace_parallel(place + n, y, i, left, f, other);
        }
      });
  }

  const collage_pipe_tree &t;
  const int32_t all_;
  std::vector<Degrees> usable_;
  std::unordered_map<uint64_t, Row> memo_;
  collage_pipe_stage *found_ = nullptr;
  int32_t most_ = 0, count_ = 0;
};

// Stages between nested sets of a family. A state is a set that is left, and the stages after it that read from it: in a
// chain the next one. Its row has, for each number of devices, the fewest in-flight samples at the source.
class Ideals : Search {
 public:
  Ideals(const collage_pipe_costs &costs, const collage_pipe_ideals &ideals, double t_max, double seconds)
      : Search(costs, t_max, seconds), f(ideals), before_(ideals.blocks, 0), below_(ideals.count), usable_(ideals.count) {
    for (int32_t n = 0; n < f.count; ++n) sets_.push_back(Set(f.sets[2 * n + 1]) << 64 | f.sets[2 * n]);
    for (int32_t e = 0; e < f.edges; ++e) before_[f.target[e]] |= Set(1) << f.source[e];
  }

  int32_t plan(collage_pipe_stage *stages, int32_t most, int64_t *states) {
    Following start;
    if (f.chain) start = {{0, c.configs, 0}};
    const int32_t last = f.count - 1, *best = state(last, start);
    *states = memo_.size();
    const int32_t least = best[c.devices];
    if (least == kNever) return 0;
    int32_t count = 0;
    trace(last, start, c.devices, least, [&](const collage_pipe_stage &each) {
      if (count < most) stages[count] = each;
      ++count;
    });
    return count;
  }

 private:
  // A block after the set that reads from it (in a chain, any), with the configuration and in-flight samples of its stage.
  struct Reader {
    int32_t block, config, in_flight;
    bool operator==(const Reader &other) const {
      return block == other.block && config == other.config && in_flight == other.in_flight;
    }
  };
  using Following = std::vector<Reader>;
  struct Key {
    int32_t set;
    Following after;
    bool operator==(const Key &other) const { return set == other.set && after == other.after; }
  };
  struct Hash {
    size_t operator()(const Key &key) const {
      uint64_t hash = key.set;
      for (const Reader &each : key.after)
        for (int32_t word : {each.block, each.config, each.in_flight})
          hash = (hash ^ uint32_t(word)) * 0x9e3779b97f4a7c15ULL, hash ^= hash >> 29;
      return hash;
    }
  };

  // The sets inside the set n, and the usable degrees of each stage between.
  void open(int32_t n) {
    if (!below_[n].empty() || n == 0) return;
    const int32_t width = c.tables + kExtras;
    std::vector<double> sums(width);
    for (int32_t m = n - 1; m >= 0; --m) {
      if (sets_[m] & ~sets_[n]) continue;
      clock.tick();
      stage_sums(m, n, sums.data());
      below_[n].push_back(m);
      for (int32_t x = 0; x < c.configs; ++x) usable_[n].push_back(usable_degrees(sums.data(), x));
    }
  }

  void stage_sums(int32_t m, int32_t n, double *sums) const {
    const int32_t width = c.tables + kExtras;
    for (int32_t at = 0; at < width; ++at) sums[at] = f.sums[size_t(n) * width + at] - f.sums[size_t(m) * width + at];
    const Set inside = sets_[n] & ~sets_[m];
    double bytes = 0, cuts = 0;
    for (int32_t e = 0; e < f.edges; ++e)
      if ((inside >> f.source[e] & 1) != (inside >> f.target[e] & 1)) bytes += f.bytes[e], ++cuts;
    sums[c.tables + kCutBytes] = bytes, sums[c.tables + kCuts] = cuts;
  }

  // Visits each stage that may be the last one of the set n: visit(its start m, x, degrees, in-flight, least value).
  template <typename Visit>
  void each_stage(int32_t n, const Following &after, Visit visit) {
    open(n);
    const int32_t width = c.tables + kExtras;
    for (size_t at = 0; at < below_[n].size(); ++at) {
      const Degrees *usable = &usable_[n][at * c.configs];
      if (std::all_of(usable, usable + c.configs, [](Degrees each) { return !each; })) continue;
      const int32_t m = below_[n][at];
      const double *mine = f.sums + size_t(n) * width + c.tables, *rest = f.sums + size_t(m) * width + c.tables;
      const double state = mine[kState] - rest[kState], activations = mine[kActivations] - rest[kActivations];
      const Set inside = sets_[n] & ~sets_[m];
      bool is_source = m == 0;
      if (!f.chain)
        for (int32_t v = 0; v < f.blocks; ++v) is_source = is_source || ((inside >> v & 1) && !before_[v]);
      for (int32_t x = 0; x < c.configs; ++x) {
        if (!usable[x]) continue;
        int32_t in_flight = -1;
        for (const Reader &each : after)
          if (f.chain || (before_[each.block] & inside))
            in_flight = std::max(in_flight, needed(x, each.config, each.in_flight));
        if (in_flight < 0) in_flight = needed(x, c.configs, 0);
        if (const Degrees degrees = fitting(usable[x], state, activations, in_flight))
          visit(m, x, degrees, in_flight, is_source ? in_flight : 0);
      }
    }
  }

  // The stages that read from the set m, if the next one is from m to n.
  Following following(int32_t m, int32_t n, const Following &after, int32_t x, int32_t in_flight) const {
    if (f.chain) return {{0, x, in_flight}};
    Following found;
    for (const Reader &each : after)
      if (before_[each.block] & sets_[m]) found.push_back(each);
    for (int32_t v = 0; v < f.blocks; ++v)
      if ((sets_[n] & ~sets_[m]) >> v & 1 && before_[v] & sets_[m]) found.push_back({v, x, in_flight});
    std::sort(found.begin(), found.end(), [](const Reader &a, const Reader &b) { return a.block < b.block; });
    return found;
  }

  const int32_t *state(int32_t n, const Following &after) {
    auto [at, is_new] = memo_.try_emplace(Key{n, after});
    if (!is_new) return at->second.get();
    clock.tick();
    Row best = row(1);
    if (n == 0) {
      std::fill_n(best.get(), c.devices + 1, 0);
    } else {
      each_stage(n, after, [&](int32_t m, int32_t x, Degrees degrees, int32_t in_flight, int32_t least) {
        const int32_t *rest = state(m, following(m, n, after, x, in_flight));
        for (int32_t g = 0; degrees >> g; ++g)
          if (degrees >> g & 1) take(best.get(), rest, 1 << g, 1, least);
      });
      for (int32_t d = 1; d <= c.devices; ++d) best[d] = std::min(best[d], best[d - 1]);
    }
    return (memo_[Key{n, after}] = std::move(best)).get();
  }

  template <typename Emit>
  void trace(int32_t n, const Following &after, int32_t d, int32_t wanted, Emit emit) {
    bool done = n == 0;
    each_stage(n, after, [&](int32_t m, int32_t x, Degrees degrees, int32_t in_flight, int32_t least) {
      if (done || least > wanted) return;
      const Following next = following(m, n, after, x, in_flight);
      const int32_t *rest = state(m, next);
      for (int32_t g = 0; !done && degrees >> g; ++g) {
        const int32_t left = d - (1 << g);
        if (!(degrees >> g & 1) || left < 0 || rest[left] > wanted) continue;
        done = true;
        emit(collage_pipe_stage{0, m, n, x, g, in_flight});
        trace(m, next, left, rest[left], emit);
      }
    });
  }

  const collage_pipe_ideals &f;
  std::vector<Set> sets_, before_;
  std::vector<std::vector<int32_t>> below_;
  std::vector<std::vector<Degrees>> usable_;
  std::unordered_map<Key, Row, Hash> memo_;
};

template <typename Plan>
int32_t guarded(Plan plan) {
  try {
    return plan();
  } catch (const std::bad_alloc &) {
    return -1;
  } catch (const Late &) {
    return -2;
  }
}

}  // namespace

extern "C" int32_t collage_pipe_plan_tree(const collage_pipe_costs *costs, const collage_pipe_tree *tree, double t_max,
                                          double seconds, collage_pipe_stage *stages, int32_t most,
                                          int64_t *states) {
  return guarded([&] { return Tree(*costs, *tree, t_max, seconds).plan(stages, most, states); });
}

extern "C" int32_t collage_pipe_plan_ideals(const collage_pipe_costs *costs, const collage_pipe_ideals *ideals,
                                            double t_max, double seconds, collage_pipe_stage *stages, int32_t most,
                                            int64_t *states) {
  return guarded([&] { return Ideals(*costs, *ideals, t_max, seconds).plan(stages, most, states); });
}
